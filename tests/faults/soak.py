"""A soak: calls, messages, a channel and weights over two nodes for minutes, while a rank is killed every few seconds.

    python -m tests.faults.soak                       # ten minutes, a kill every ten seconds
    python -m tests.faults.soak --seconds 60 --every 2

Nothing may fail but what was injected, and no process that lives through it may grow by more than 2 MB once the first
three tenths of the time have passed.  One line of JSON tells what was done, and by how much each process has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from rlinf_async import Channel, Cluster, NodePlacementStrategy, WorkerDied
from tests._support.mortal_workers import Mortal, Pupil, Teacher

_MAX_GROWTH_MB: Final = 2.0
_SAMPLE_S: Final = 5.0
_STEPS_S: Final = 0.02
"""Between two steps of a flow, so that a machine of two cores is not only busy with the soak."""


class Soak:
    """The flows of a soak, and what became of them.

    Attributes:
        done: steps by flow.
        injected: calls that have failed with a rank that was killed.
    """

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self.injected = 0
        self.kills = 0
        self._cluster = cluster
        self._random = random.Random(seed)
        self._ended = asyncio.Event()
        self._returned: asyncio.Queue[int] = asyncio.Queue()

    async def run(self, seconds: float, every: float) -> dict[str, Any]:
        options: dict[str, Any] = {"restart": "rank", "max_restarts": 1_000_000, "env": {"MINE": ""}}
        spread = NodePlacementStrategy([0, 0, 1, 1])
        self.pupils = Pupil.create_group().launch(self._cluster, spread, name="pupils", **options)
        self.teacher = Teacher.create_group().launch(self._cluster, NodePlacementStrategy([0]), name="teacher")
        self.pair = Mortal.create_group().launch(self._cluster, NodePlacementStrategy([0, 1]), name="pair")
        self.channel = await Channel.create("items", cluster=self._cluster, node_rank=1, maxsize=64)
        await asyncio.gather(self.pupils, self.teacher, self.pair)
        self.pupils.on_restart(lambda restart: [self._returned.put_nowait(rank) for rank in restart.ranks])
        for rank in range(4):
            self._returned.put_nowait(rank)
        await self.teacher.begin("pupils")
        steady = await self._steady()
        flows = {
            "calls": self._call, "calls made again": self._call_again, "messages": self._exchange,
            "items": self._pass_on, "versions": self._teach,
        }  # fmt: skip
        async with asyncio.TaskGroup() as tasks:
            for name, step in flows.items():
                tasks.create_task(self._flow(name, step))
            joining = tasks.create_task(self._join_again())
            killing = tasks.create_task(self._kill(every))
            samples = await self._watch(steady, seconds)
            killing.cancel()
            joining.cancel()
            self._ended.set()
        await self.teacher.end()
        stats = await self.channel.stats()
        grown = {
            name: round(max(values[-3:]) - max(values[: max(1, len(values) * 3 // 10)]), 2)
            for name, values in samples.items()
        }
        return {"kills": self.kills, "injected": self.injected, "done": dict(self.done), "grown_mb": grown} | {
            "ledger": str(stats)
        }

    async def _steady(self) -> dict[str, int]:
        """Pids of the processes that nobody kills."""
        pids = {"driver": os.getpid(), "teacher": await self._pid(self.teacher)}
        for node in range(2):
            pids[f"daemon {node}"] = (await self._cluster.status(node))["pid"]
        return pids | {f"pair {rank}": pid for rank, (_, _, pid) in enumerate(await self.pair.who())}

    async def _pid(self, group: Any) -> int:
        return int((await group.pid())[0])

    async def _flow(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        while not self._ended.is_set():
            try:
                await step()
                self.done[name] += 1
            except WorkerDied as died:
                if not died.returns:
                    raise
                self.injected += 1
            await asyncio.sleep(_STEPS_S)

    async def _call(self) -> None:
        assert len(await self.pupils.who()) == 4

    async def _call_again(self) -> None:
        number = self.done["calls made again"]
        assert await self.pupils.echo(number) == [number] * 4

    async def _exchange(self) -> None:
        number = self.done["messages"]
        _, taken = await asyncio.gather(self.pair[0].give(number, "pair", 1), self.pair[1].take("pair", 0))
        assert taken == [number], (taken, number)

    async def _pass_on(self) -> None:
        number = self.done["items"]
        await self.channel.put(number)
        assert await self.channel.get() == number

    async def _teach(self) -> None:
        await self.teacher.step(float(self.done["versions"]))

    async def _join_again(self) -> None:
        """Has ranks that are new follow the teacher."""
        while True:
            rank = await self._returned.get()
            with contextlib.suppress(WorkerDied):
                await self.pupils[rank].join("teacher")

    async def _kill(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            rank = self._random.randrange(4)
            try:
                ((_, _, pid),) = await self.pupils[rank].who()
            except WorkerDied:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.kills += 1

    async def _watch(self, pids: dict[str, int], seconds: float) -> dict[str, list[float]]:
        """Memory in MB, every few seconds."""
        samples: dict[str, list[float]] = {name: [] for name in pids}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(min(_SAMPLE_S, seconds / 20))
            for name, pid in pids.items():
                samples[name].append(_own_mb(pid))
        return samples


def _own_mb(pid: int) -> float:
    """What a process alone has written to.

    A library's pages that nobody else has loaded are private too, and come and go with others who load it.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (kib,) = (int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))
    return kib * 1024 / 1e6


async def main(flags: argparse.Namespace) -> int:
    async with Cluster(local_nodes=2, log_to_driver=False) as cluster:
        told = await Soak(cluster, flags.seed).run(flags.seconds, flags.every)
    print(json.dumps(told), flush=True)
    return int(max(told["grown_mb"].values()) > _MAX_GROWTH_MB)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--every", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    sys.exit(asyncio.run(main(parser.parse_args())))
