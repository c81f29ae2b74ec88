"""Calls that run in this process, for reports about it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ServedCall:
    """Running call of this worker, by caller and the caller's number; without a task it runs on the main thread
    (``def``).

    Attributes:
        is_paused: true if its generator waits for the caller to take items.
    """

    source: int
    number: int
    method: str
    task: asyncio.Task[Any] | None
    is_paused: bool = False
