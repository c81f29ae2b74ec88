"""The monotonic clock for waits, leases and pauses, kept here so that the simulation can replace it.

Event loops run on the same clock: ``loop.time()`` and ``monotonic()`` may be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# Returns the seconds since an arbitrary moment; the value never decreases.
monotonic: Callable[[], float] = time.monotonic


def rest(timeout: float | None, begun: float) -> float | None:
    """Return the seconds left of a timeout that began at ``begun``, to the millisecond; None if there is no timeout."""
    return None if timeout is None else max(0.0, round(float(timeout) - (monotonic() - begun), 3))
