"""Waiting for what another process or thread brings about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], seconds: float = 30) -> float:
    """How long it took."""
    since = time.monotonic()
    while not condition():
        assert time.monotonic() - since < seconds
        time.sleep(0.001)
    return time.monotonic() - since
