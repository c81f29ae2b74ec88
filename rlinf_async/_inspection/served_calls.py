"""Calls that run in this process, for reports of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ServedCall:
    """A call that runs in this worker.

    Attributes:
        source, number: its caller, and how that calls it.
        task: in which it runs; None for a ``def`` method, on the main thread.
        is_paused: its generator waits for the caller to take items.
    """

    source: int
    number: int
    method: str
    task: asyncio.Task[Any] | None
    is_paused: bool = False
