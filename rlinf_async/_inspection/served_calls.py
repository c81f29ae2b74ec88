"""Records of the calls that are running in this process, for reports about the process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ServedCall:
    """A running call, identified by its caller's endpoint and the caller's number for it.

    Attributes:
        task: task that runs the call; None for a ``def`` method on the main thread.
        is_paused: True if its generator is waiting for the caller to take items.
    """

    source: int
    number: int
    method: str
    task: asyncio.Task[Any] | None
    is_paused: bool = False
