"""Checks of users' arguments: whole numbers, switches, seconds; errors name the argument and whose it is."""

from __future__ import annotations

import math
import operator
from typing import Any, Final

MAX_INTEGER: Final = 2**63 - 1
"""The largest whole number that a frame carries."""


def whole_number(value: Any, argument: str, whose: str, least: int = 0) -> int:
    """The int that an argument stands for: of NumPy, of a tensor of one element, or whatever is a whole number.

    Raises:
        TypeError: it is none, as 1.5 and 2.0 are not.
        ValueError: it is less than ``least``, or more than ``MAX_INTEGER``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{whose}: {argument}= takes a whole number, got {value!r}") from None
    if not least <= number <= MAX_INTEGER:
        raise ValueError(f"{whose}: {argument}= takes a whole number from {least} to 2**63 - 1, got {number}")
    return number


def switch(value: Any, argument: str, whose: str, instead: str) -> bool:
    """The bool that an argument is; ``instead`` is the argument that a number in its place was probably meant for.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, bool):
        return value
    raise TypeError(f"{whose}: {argument}= takes True or False, got {value!r} (for {instead}= write its name)")


def seconds(timeout: Any, whose: str) -> float:
    """The float that a ``timeout=`` stands for.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative, NaN, or more than a float holds.
    """
    try:
        value = math.fsum((timeout,))  # float() would take a str
    except TypeError:
        raise TypeError(f"{whose}: timeout= takes seconds, got {timeout!r}") from None
    except OverflowError:
        value = math.nan
    if not value >= 0:
        raise ValueError(f"{whose}: timeout= takes seconds, got {timeout!r}")
    return value
