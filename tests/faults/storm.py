"""Calls that a thread makes without waiting for any, while the daemon dies."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf_async import DeadlineExceeded
from rlinf_async._client.client import NodeClient
from tests.faults.waits import PATIENCE_S

UNDER_WAY = 300
"""Calls after which the daemon may die."""

MAX_OPEN = 1000
"""Calls that one thread has open, so that the loop that handles answers comes to its turn."""

NBYTES = 100_000
"""Of an argument: enough for system calls while a call is made, in which other threads go on."""

AFTERWARDS = 20
"""Calls that are made when the client knows of its death."""


class StormError(Exception):
    """Calls that do not end (``hang``), or that raise where they are made (``error``)."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def storm(group: Any, client: NodeClient, loop: asyncio.AbstractEventLoop, under_way: asyncio.Event) -> None:
    """Makes calls until some have failed, and waits for all.

    Raises:
        StormError: some never end, or a call was refused where it was made.
    """
    handles: list[Any] = []
    payload = bytes(NBYTES)
    hung, after, refused = 0, 0, ""
    while after < AFTERWARDS and not hung:
        try:
            handles.append(group.swallow(payload))
        except Exception as error:
            refused = f"a call was refused where it was made: {type(error).__name__}: {error}"
        if len(handles) == UNDER_WAY:
            loop.call_soon_threadsafe(under_way.set)
        after += client.closed is not None
        if len(handles) > MAX_OPEN:
            hung += _hangs(handles[-MAX_OPEN], PATIENCE_S)
    for handle in handles:
        hung += _hangs(handle, 0.0 if hung else PATIENCE_S)
    if hung:
        raise StormError("hang", f"{hung} of {len(handles)} calls never end")
    if refused:
        raise StormError("error", refused)


def _hangs(handle: Any, seconds: float) -> bool:
    try:
        handle.wait(timeout=seconds)
    except DeadlineExceeded:
        return True
    except Exception:
        return False
    return False
