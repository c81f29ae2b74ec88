"""The clock by which the framework measures waits, leases and pauses: one place, so that time can be another one's.

Event loops have the same clock: what reads ``loop.time()`` and what reads this one may be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable

monotonic: Callable[[], float] = time.monotonic
"""Seconds from an arbitrary moment; never goes back."""


def rest(timeout: float | None, begun: float) -> float | None:
    """Return the seconds that are left of a timeout since ``begun``, to the millisecond; None for no timeout."""
    return None if timeout is None else max(0.0, round(float(timeout) - (monotonic() - begun), 3))
