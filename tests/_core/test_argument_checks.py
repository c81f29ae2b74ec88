"""Checks of users' arguments."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, strategies as st

from rlinf_async._core.argument_checks import MAX_INTEGER, seconds, whole_number


@given(st.integers())
@example(MAX_INTEGER)
@example(MAX_INTEGER + 1)
def test_a_whole_number_is_itself_or_refused(value: int) -> None:
    if 0 <= value <= MAX_INTEGER:
        assert whole_number(value, "weight", "put()") == value
    else:
        with pytest.raises(ValueError, match=r"^put\(\): weight= takes a whole number from 0 to 2\*\*63 - 1, got "):
            whole_number(value, "weight", "put()")


@given(st.floats() | st.integers())
def test_seconds_are_themselves_or_refused(value: float) -> None:
    if value >= 0:
        assert seconds(value, "get()") == float(value)
        assert type(seconds(value, "get()")) is float
    else:
        with pytest.raises(ValueError, match=re.escape(f"get(): timeout= takes seconds, got {value}")):
            seconds(value, "get()")
