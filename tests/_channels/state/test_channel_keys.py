"""Canonical bytes of channel keys: equal exactly where a dict takes the keys for equal, in every process."""

from __future__ import annotations

import enum
import subprocess
import sys
from collections import namedtuple
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rlinf_async._channels.state.channel_keys import MAX_KEY_BYTES, canonical_key

Route = namedtuple("Route", "source target")


class Stage(enum.StrEnum):
    ENV = "env"


class Rank(enum.IntEnum):
    FIRST = 1


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda parts: st.lists(parts, max_size=3).map(tuple) | st.frozensets(parts, max_size=3),
    max_leaves=6,
)


@given(PLAIN, PLAIN)
@settings(derandomize=True, max_examples=500, deadline=None)
def test_bytes_are_equal_where_keys_are(one: Any, other: Any) -> None:
    assert (canonical_key(one) == canonical_key(other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (1, True),
        (1, 1.0),
        (1, np.int64(1)),
        (0.5, np.float32(0.5)),
        (0.5, Fraction(1, 2)),
        ("env", Stage.ENV),
        ("env", np.str_("env")),
        (1, Rank.FIRST),
        (("a", 1), Route("a", 1)),
        (2**70, float(2**70)),
        (("a", Stage.ENV), ("a", "env")),
        (complex(1, 2), complex(1, 2)),
    ],
)
def test_what_a_dict_takes_for_one_key_is_one(one: Any, same: Any) -> None:
    assert {one: 1}[same] == 1
    assert canonical_key(one) == canonical_key(same)


@pytest.mark.parametrize(
    ("one", "other"), [("1", 1), ("a", b"a"), ((), frozenset()), (("a",), "a"), (None, "None"), ((1, 2), (2, 1))]
)
def test_what_differs_stays_different(one: Any, other: Any) -> None:
    assert canonical_key(one) != canonical_key(other)


def test_another_process_makes_the_same_bytes() -> None:
    """Hashes of strings, and with them the order of sets, are another process's own."""
    keys = [frozenset(map(str, range(50))), ("a" * 5, "a" * 5), slice_like()]
    code = "from tests._channels.state.test_channel_keys import *; print([canonical_key(key).hex() for key in "
    code += "[frozenset(map(str, range(50))), ('a' * 5, 'a' * 5), slice_like()]])"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert eval(other) == [canonical_key(key).hex() for key in keys]


def slice_like() -> Any:
    """A key that is known by its pickle, with equal parts that may or may not be one object."""
    return complex(2, 2), "".join(["x", "y"]), "xy"


def test_what_cannot_be_a_key_is_named() -> None:
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        canonical_key([1])
    with pytest.raises(TypeError, match=r"cannot be a key, because it cannot be pickled"):
        canonical_key(lambda: None)
    with pytest.raises(ValueError, match=f"a key may take {MAX_KEY_BYTES} bytes, 'xxxx"):
        canonical_key("x" * (MAX_KEY_BYTES + 1))
