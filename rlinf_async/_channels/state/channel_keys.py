"""Encodes channel keys canonically: maps any hashable, picklable value to bytes, the same in every process."""

from __future__ import annotations

import io
import numbers
import pickle
from typing import Any, Final

import msgpack

MAX_KEY_BYTES: Final = 64 * 1024


def canonical_key(key: Any) -> bytes:
    """Return the same bytes for equal keys, in any process.

    As in a dict, ``1``, ``1.0`` and ``True`` are one key, as are a named tuple and the equal plain tuple. Any value
    other than numbers, strings, bytes, None, tuples and frozen sets is encoded as its pickle.

    Raises:
        TypeError: the key is not hashable or cannot be pickled.
        ValueError: its encoding takes more than ``MAX_KEY_BYTES`` bytes.
    """
    if isinstance(key, str):
        packed = b"s" + str.encode(key, "utf-8", "surrogatepass")
    else:
        hash(key)
        packed = b"v" + _packed(key)
    if len(packed) > MAX_KEY_BYTES:
        raise ValueError(f"a key may take {MAX_KEY_BYTES} bytes, {str(key)[:40]!r}… takes {len(packed)}")
    return packed


def key_of(packed: bytes) -> Any:
    if packed[:1] == b"s":
        return packed[1:].decode("utf-8", "surrogatepass")
    return _unplain(msgpack.unpackb(packed[1:], unicode_errors="surrogatepass"))


def _unplain(value: Any) -> Any:
    if type(value) is not list:
        return value
    kind, *rest = value
    if kind == "tuple":
        return tuple(map(_unplain, rest))
    if kind == "set":
        return frozenset(_unplain(msgpack.unpackb(item, unicode_errors="surrogatepass")) for item in rest)
    return int(rest[0]) if kind == "int" else rest[0]


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(_plain(value), use_bin_type=True, unicode_errors="surrogatepass")
    return packed


def _plain(value: Any) -> Any:
    """Return a value that msgpack can pack, different for different keys."""
    if value is None or type(value) is bytes or type(value) is str:
        return value
    if isinstance(value, str):
        return str.encode(value, "utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
    if isinstance(value, numbers.Integral):
        number = int(value)
        return number if -(2**63) <= number < 2**64 else ["int", str(number)]
    if isinstance(value, numbers.Real):
        real = float(value)
        return _plain(int(real)) if real.is_integer() and real == value else real
    if isinstance(value, tuple):
        return ["tuple", *map(_plain, value)]
    if isinstance(value, frozenset):
        return ["set", *sorted(_packed(item) for item in value)]
    return ["pickle", _pickled(value)]


def _pickled(value: Any) -> bytes:
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5)
    # Pickle without a memo: a key with one shared part and a key with two equal parts must have the same encoding.
    pickler.fast = True
    try:
        pickler.dump(value)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise TypeError(f"{value!r} cannot be a key, because it cannot be pickled: {error}") from error
    return file.getvalue()
