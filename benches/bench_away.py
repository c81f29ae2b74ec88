"""Calls per second of 63 ranks while the 64th crashes again and again, by ``order`` of the group's calls.

    python -m benches.bench_away [--ranks 64] [--rounds 8]

A loop for each other rank awaits a call and makes the next one.  Each round compares the time from a crash until the
rank is back, about ten seconds because of the delay before a restart, with the seconds before and after it.  Other load
of the machine falls on both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
from collections.abc import Awaitable
from typing import Any, Final

from rlinf_async import Cluster, NodePlacementStrategy, PeerLost, Worker
from rlinf_async._core import clock

_CRASHES_BEFORE: Final = 8
"""Seconds of the longest delay before a restart in this bench."""

_QUIET_S: Final = 2.5
"""Seconds of life after which a rank's next restart has a short delay again; 10 s outside this bench."""


class Sampler(Worker):
    async def ping(self) -> None:
        pass

    def crash(self) -> None:
        os._exit(3)


class Calls:
    """Keeps one open call to each of some ranks at all times."""

    def __init__(self, members: list[Any]) -> None:
        self._members = members
        self._answered = 0

    async def make(self) -> None:
        async def ask(member: Any) -> None:
            while True:
                await member.ping()
                self._answered += 1

        async with asyncio.TaskGroup() as tasks:
            for member in self._members:
                tasks.create_task(ask(member))

    async def rate(self, during: Awaitable[Any]) -> float:
        """Return answered calls per second."""
        began, before = clock.monotonic(), self._answered
        await during
        return (self._answered - before) / (clock.monotonic() - began)


async def crash(member: Any) -> None:
    """Crash a rank, and wait until it is back."""
    with contextlib.suppress(PeerLost):
        await member.crash()
    await member.ping()


async def measure(ranks: int, rounds: int, order: str) -> None:
    async with Cluster(log_to_driver=False) as cluster:
        options: dict[str, Any] = {"restart": "rank", "max_restarts": 10_000, "order": order}
        group = Sampler.create_group().launch(cluster, NodePlacementStrategy([0] * ranks), name="sampler", **options)
        await group
        calls, last = Calls([group[rank] for rank in range(ranks - 1)]), group[ranks - 1]
        making = asyncio.create_task(calls.make())
        for _ in range(_CRASHES_BEFORE):
            await crash(last)
        shares, before = [], await calls.rate(asyncio.sleep(_QUIET_S))
        for _ in range(rounds):
            beside = await calls.rate(crash(last))
            after = await calls.rate(asyncio.sleep(_QUIET_S))
            shares.append(2 * beside / (before + after))
            before = after
        making.cancel()
        await asyncio.wait([making])
        share = statistics.median(shares)
        print(f"order={order!r}: {before:.0f} calls/s undisturbed, {share:.1%} of them beside a rank that crashes")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.bench_away", description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=8)
    flags = parser.parse_args()
    for order in ("rank", "group"):
        asyncio.run(measure(flags.ranks, flags.rounds, order))


if __name__ == "__main__":
    main()
