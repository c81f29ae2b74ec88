"""Division of a worker's shutdown time, known to the worker and to its daemon."""

from __future__ import annotations

from typing import Final

_CALLS_SHARE: Final = 0.2
_CALLS_S: Final = 1.6
_CALLS_MOST: Final = 0.8
_MARGIN: Final = 0.05
_MARGIN_S: Final = 0.5


def seconds_for_calls(grace: float) -> float:
    """Return the seconds that open calls may still take; the rest of ``grace`` is for hooks and exit functions."""
    return max(_CALLS_SHARE * grace, min(_CALLS_MOST * grace, _CALLS_S))


def seconds_until_kill(grace: float) -> float:
    return grace + min(_MARGIN * grace, _MARGIN_S)
