"""Detection of failed calls whose cause is a restarted worker, whenever it died."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rlinf_async import PeerLost, WorkerGroup

_READY_TIMEOUT_S = 20.0
"""Seconds for workers, including restarting ones, to say whether they are initialised; a worker that does not answer
counts as not new."""


async def comes_of_a_death(error: Exception, groups: Sequence[WorkerGroup]) -> bool:
    """True if a worker was restarted, or is about to be.

    A worker that dies between two calls is back before anyone notices. The next call then fails in some way, because
    the worker is not initialised. The content of a channel on a lost node does not come back, even if its workers do.

    Args:
        error: exception of a failed call.
        groups: worker groups with a method ``is_ready``.
    """
    if isinstance(error, PeerLost) and error.returns:
        return True
    try:
        async with asyncio.timeout(_READY_TIMEOUT_S):
            for group in groups:
                if not all(await group.is_ready()):
                    return True
    except PeerLost as another:
        return another.returns
    except TimeoutError:
        pass
    return False


def death_of(error: Exception) -> str:
    """Return one line on what happened."""
    return str(error).splitlines()[0] if isinstance(error, PeerLost) else "a worker was started again"
