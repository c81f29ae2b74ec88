"""Checks of users' arguments: integers, bools, seconds. Errors name the argument and its function."""

from __future__ import annotations

import math
import operator
from typing import Any, Final

MAX_INTEGER: Final = 2**63 - 1  # largest integer that fits into a frame


def whole_number(value: Any, argument: str, whose: str, least: int = 0) -> int:
    """Return an int, a NumPy integer or a one-element integer tensor as an int; TypeError for anything else."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{whose}: {argument}= takes a whole number, got {value!r}") from None
    if not least <= number <= MAX_INTEGER:
        raise ValueError(f"{whose}: {argument}= takes a whole number from {least} to 2**63 - 1, got {number}")
    return number


def switch(value: Any, argument: str, whose: str, instead: str) -> bool:
    """Return an argument that must be a bool; ``instead`` names the argument that a number was probably meant for."""
    if isinstance(value, bool):
        return value
    raise TypeError(f"{whose}: {argument}= takes True or False, got {value!r} (for {instead}= write its name)")


def seconds(timeout: Any, whose: str) -> float:
    """Return ``timeout=`` as a float; TypeError if it is not a number, ValueError if negative, NaN or too large."""
    try:
        value = math.fsum((timeout,))  # float() would accept a str
    except TypeError:
        raise TypeError(f"{whose}: timeout= takes seconds, got {timeout!r}") from None
    except OverflowError:
        value = math.nan
    if not value >= 0:
        raise ValueError(f"{whose}: timeout= takes seconds, got {timeout!r}")
    return value
