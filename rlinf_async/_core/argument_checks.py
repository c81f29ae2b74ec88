"""Checks of users' arguments: whole numbers, switches, seconds; errors name the argument and whose it is."""

from __future__ import annotations

import math
import operator
from typing import Any, Final

MAX_INTEGER: Final = 2**63 - 1
"""Largest whole number that fits into a frame."""


def whole_number(value: Any, argument: str, whose: str, least: int = 0) -> int:
    """Return the int that an argument stands for: an int, a NumPy integer, a tensor of one integer element.

    Raises:
        TypeError: the argument is no whole number, as 1.5 and 2.0 are not.
        ValueError: the number is less than ``least``, or more than ``MAX_INTEGER``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{whose}: {argument}= takes a whole number, got {value!r}") from None
    if not least <= number <= MAX_INTEGER:
        raise ValueError(f"{whose}: {argument}= takes a whole number from {least} to 2**63 - 1, got {number}")
    return number


def switch(value: Any, argument: str, whose: str, instead: str) -> bool:
    """Return an argument that must be a bool.

    Args:
        instead: name of the argument that a number in this place was probably meant for.

    Raises:
        TypeError: the argument is no bool.
    """
    if isinstance(value, bool):
        return value
    raise TypeError(f"{whose}: {argument}= takes True or False, got {value!r} (for {instead}= write its name)")


def seconds(timeout: Any, whose: str) -> float:
    """Return a ``timeout=`` as a float.

    Raises:
        TypeError: the timeout is no number.
        ValueError: the timeout is negative, NaN, or more than a float holds.
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
