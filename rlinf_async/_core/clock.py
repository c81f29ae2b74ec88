"""The clock by which the framework measures waits, leases and pauses: one place, so that time can be another one's.

Event loops have the same clock: what reads ``loop.time()`` and what reads this one may be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable

monotonic: Callable[[], float] = time.monotonic
"""Seconds from an arbitrary moment; never goes back."""
