"""Splits and merges batches (nested dicts of tensors, arrays, lists) by rows; infers and checks their sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_async.errors import ConfigError

_SAME_FOR_ALL = (bool, int, float, complex, str, bytes)


def infer_batch_size(data: Any) -> int:
    """Return the number of rows in a tensor, an array or a list, or in a dict's first value that is not None.

    Raises:
        ValueError: the data has no rows.
    """
    size = _rows(data)
    if size is not None:
        return size
    if isinstance(data, dict):
        for value in data.values():
            if value is not None:
                return infer_batch_size(value)
    raise ValueError(f"no batch size can be told from {_kind(data)}: give batch_size=, or infer_batch_size_fn=")


def get_batch_size(data: Any, infer_batch_size_fn: Callable[[Any], int] | None = None) -> int:
    """Return the number of rows in a batch, counted by ``infer_batch_size_fn`` or else by ``infer_batch_size``."""
    return (infer_batch_size_fn or infer_batch_size)(data)


def validate_batch_size(
    data: Any,
    expected_batch_size: int,
    infer_batch_size_fn: Callable[[Any], int] | None = None,
    *,
    what: str = "the batch",
) -> None:
    """Check a batch's number of rows.

    Raises:
        ConfigError: the batch has a different number of rows.
    """
    size = get_batch_size(data, infer_batch_size_fn)
    if size != expected_batch_size:
        raise ConfigError(f"{what} has {size} rows, and {expected_batch_size} are expected")


def split_batch(data: Any, split_sizes: Sequence[int]) -> list[Any]:
    """Split a batch into parts with the given numbers of rows, at any depth of dicts.

    A tensor's parts are contiguous, and share its memory if the tensor itself is contiguous. None, numbers, strings and
    tensors without dimensions are copied into every part.

    Raises:
        ConfigError: a value's number of rows differs from the parts' total, or its type is unknown.
    """
    return _split(data, list(split_sizes), "the batch")


def _split(data: Any, sizes: list[int], path: str) -> list[Any]:
    if data is None or isinstance(data, _SAME_FOR_ALL):
        return [data] * len(sizes)
    if isinstance(data, dict):
        split = {key: _split(value, sizes, f"{path}[{key!r}]") for key, value in data.items()}
        return [{key: values[index] for key, values in split.items()} for index in range(len(sizes))]
    rows = _rows(data)
    if rows is None:
        if _is_tensor(data) or _is_array(data):
            return [data] * len(sizes)
        raise ConfigError(f"{path} cannot be split: it is {_kind(data)}; give split_fn=")
    if rows != sum(sizes) or min(sizes, default=0) < 0:
        raise ConfigError(f"{path} has {rows} rows, and the parts {sizes} have {sum(sizes)} together")
    parts = []
    first = 0
    for size in sizes:
        part = data[first : first + size]
        parts.append(part.contiguous() if _is_tensor(part) else part)
        first += size
    return parts


def merge_batches(batches: Sequence[Any]) -> Any:
    """Merge parts in order, the inverse of ``split_batch``. Return None if there are no parts, or all are None.

    Raises:
        ConfigError: the parts differ in type, in keys, or in a number or string at the same position.
    """
    return _merge(list(batches), "the batch")


def _merge(parts: list[Any], path: str) -> Any:
    if all(part is None for part in parts):
        return None
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        kinds = ", ".join(dict.fromkeys(map(_kind, parts)))
        raise ConfigError(f"{path} cannot be merged from parts of different kinds: {kinds}")
    if len(parts) == 1:
        return first
    if isinstance(first, dict):
        for part in parts:
            if part.keys() != first.keys():
                keys = sorted(map(repr, part.keys() ^ first.keys()))
                raise ConfigError(f"{path} cannot be merged: not all parts have {', '.join(keys)}")
        return {key: _merge([part[key] for part in parts], f"{path}[{key!r}]") for key in first}
    if _is_tensor(first) and first.dim():
        return _joined(sys.modules["torch"].cat, parts, path)
    if _is_array(first) and first.ndim:
        return _joined(sys.modules["numpy"].concatenate, parts, path)
    if type(first) in (list, tuple):
        return type(first)(row for part in parts for row in part)
    if isinstance(first, _SAME_FOR_ALL) or _is_tensor(first) or _is_array(first):
        if any(not _is_same(part, first) for part in parts):
            raise ConfigError(f"{path} cannot be merged: it is {first!r} in one part and something else in another")
        return first
    raise ConfigError(f"{path} cannot be merged: it is {_kind(first)}; give merge_fn=")


def _joined(join: Callable[[list[Any]], Any], parts: list[Any], path: str) -> Any:
    try:
        return join(parts)
    except Exception as error:  # for example, the parts differ in a dimension
        error.add_note(f"while {path} was merged")
        raise


def _rows(data: Any) -> int | None:
    """Return the length of the first dimension; None for scalars and unknown types."""
    if _is_tensor(data) or _is_array(data):
        return int(data.shape[0]) if data.ndim else None
    return len(data) if type(data) in (list, tuple) else None


def _is_same(part: Any, other: Any) -> bool:
    if _is_tensor(part):
        return bool(sys.modules["torch"].equal(part, other))
    if _is_array(part) and part.shape != other.shape:
        return False
    return bool(part == other) or (part != part and other != other)


def _is_tensor(value: Any) -> bool:
    # Do not import torch: before its import, no value can be a tensor.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
