"""Checked arguments of a send: version and timeout."""

from __future__ import annotations

import operator
from typing import Any, Final

LARGEST: Final = (1 << 63) - 1
"""Of the numbers of versions, which travel as 8 bytes."""


def number_of(version: Any) -> int:
    """The number that ``version=`` gives.

    Raises:
        TypeError: it is no whole number; a bool is none.
        ValueError: it is negative, or too large to travel.
    """
    try:
        if isinstance(version, bool):
            raise TypeError
        number = operator.index(version)
    except TypeError:
        raise TypeError(f"version= takes a whole number; got {version!r}") from None
    if not 0 <= number <= LARGEST:
        raise ValueError(f"version= is at least 0 and at most {LARGEST}; got {number}")
    return number


def check_seconds(timeout: Any) -> None:
    """
    Raises:
        TypeError: ``timeout=`` is neither a number nor None, which stands for what the method says.
        ValueError: it is negative, or not a number at all.
    """
    if timeout is None:
        return
    if isinstance(timeout, bool) or not hasattr(type(timeout), "__float__"):
        raise TypeError(f"timeout= takes seconds, or None; got {timeout!r}")
    if not timeout >= 0:  # nan is not either
        raise ValueError(f"timeout= takes seconds, at least 0; got {timeout!r}")
