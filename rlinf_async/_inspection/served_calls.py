"""The calls running in this process, for reports about it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ServedCall:
    """A running call, identified by caller and caller's number; a call without a task is a ``def`` on the main thread.

    Attributes:
        is_paused: True if its generator is waiting for the caller to take items.
    """

    source: int
    number: int
    method: str
    task: asyncio.Task[Any] | None
    is_paused: bool = False
