"""``follow_announcements``: loads each version of a trainer as soon as it is announced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rlinf_async._core.own_logger import own_logger
from rlinf_async.engines.engine import Trainer
from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost
from rlinf_async.weights.following import follow

logger = own_logger(__name__)


async def follow_announcements(
    trainer: Trainer,
    name: str,
    join: Callable[[dict[str, Any]], Awaitable[None]],
    load: Callable[[int, float], Awaitable[None]],
) -> None:
    """Have vLLM load the trainer's versions, and those of the next trainer of that name once this one has ended.

    Args:
        name: of the rank.
        join: has vLLM's workers join the run, with the fields of ``JoinInfo``.
        load: loads a version, or a later one, within so many seconds.
    """
    info = {
        "parent": name,
        "group": trainer.group,
        "rank": trainer.rank,
        "name": trainer.name,
        "verify": trainer.verify,
    }
    while True:
        version = 0
        try:
            # This follower only hears which versions there are; the processes of vLLM load them.
            weights = follow(
                None,
                (trainer.group, trainer.rank),
                name=trainer.name,
                timeout=trainer.timeout,
                verify=trainer.verify,
            )
            async with weights:
                await join(info)
                while True:
                    await weights.wait_version(version + 1)
                    version = weights.version
                    await load(version, trainer.timeout)
        except (PeerLost, ClosedError, DeadlineExceeded) as error:
            logger.info("%s samples with version %d until it hears of another: %s", name, version, error)
