"""Calls per second of 63 ranks while the 64th crashes again and again, by ``order`` of the group's calls.

    python -m benches.bench_away [--ranks 64] [--seconds 10] [--rounds 3]

Windows without and with the crashing rank take turns.  In the latter the rank crashes whenever it is back, and the
window begins after some crashes, when the delay before a restart has grown to seconds.  A loop for each other rank
awaits a call and makes the next one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import statistics
from typing import Any, Final

from rlinf_async import Cluster, NodePlacementStrategy, PeerLost, Worker
from rlinf_async._core import clock

_CRASHES_BEFORE: Final = 6
"""The delay before the next restart is 3.2 s then."""


class Sampler(Worker):
    async def ping(self) -> None:
        pass

    def crash(self) -> None:
        os._exit(3)


async def rate(others: list[Any], seconds: float) -> float:
    """Answered calls per second, one of each rank in flight."""
    until, answered = clock.monotonic() + seconds, 0

    async def ask(member: Any) -> None:
        nonlocal answered
        while clock.monotonic() < until:
            await member.ping()
            answered += 1

    async with asyncio.TaskGroup() as tasks:
        for member in others:
            tasks.create_task(ask(member))
    return answered / seconds


async def crash_on(member: Any, has_slowed: asyncio.Event) -> None:
    """Have a rank crash whenever it is back."""
    for crash in itertools.count(1):
        with contextlib.suppress(PeerLost):
            await member.crash()
        if crash == _CRASHES_BEFORE:
            has_slowed.set()


async def measure(ranks: int, seconds: float, rounds: int, order: str) -> None:
    async with Cluster(log_to_driver=False) as cluster:
        options: dict[str, Any] = {"restart": "rank", "max_restarts": 10_000, "order": order}
        group = Sampler.create_group().launch(cluster, NodePlacementStrategy([0] * ranks), name="sampler", **options)
        await group
        others = [group[rank] for rank in range(ranks - 1)]
        await rate(others, 1.0)
        quiet, beside = [], []
        for _ in range(rounds):
            quiet.append(await rate(others, seconds))
            has_slowed = asyncio.Event()
            crashing = asyncio.create_task(crash_on(group[ranks - 1], has_slowed))
            await has_slowed.wait()
            beside.append(await rate(others, seconds))
            crashing.cancel()
            await asyncio.wait([crashing])
            with contextlib.suppress(PeerLost):  # the last crash was under way
                await group.ping()
            await group.ping()
        share = statistics.median(beside) / statistics.median(quiet)
        told = f"{statistics.median(quiet):.0f} calls/s undisturbed, {statistics.median(beside):.0f} beside"
        print(f"order={order!r}: {told} a rank that crashes: {share:.1%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.bench_away", description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    for order in ("rank", "group"):
        asyncio.run(measure(flags.ranks, flags.seconds, flags.rounds, order))


if __name__ == "__main__":
    main()
