"""Recognises that a call failed because of a worker that was started again, whenever it had died."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rlinf_async import PeerLost, WorkerGroup

_READY_TIMEOUT_S = 20.0
"""For workers to say whether they are initialised, those that are just being started again too; who does not answer is
not new."""


async def comes_of_a_death(error: Exception, groups: Sequence[WorkerGroup]) -> bool:
    """Whether a worker was started again, or will be.

    One that dies between two calls is noticed when it is back: the next call fails with whatever comes of its not being
    initialised.  And what was in a channel of a lost node does not come back, but the workers of that node may.

    Args:
        error: what a call has failed with.
        groups: with a method ``is_ready``.
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
    """What has happened, in a line."""
    return str(error).splitlines()[0] if isinstance(error, PeerLost) else "a worker was started again"
