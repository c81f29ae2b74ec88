"""Verdicts on a simulated run: each process tells of its own tasks and threads, and computes for no virtual time."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest

from rlinf_async import Channel, ClosedError, Cluster, NodeLost, NodePlacementStrategy, Worker
from rlinf_async._inspection import own_threads
from rlinf_async.testing import SimCluster, sleep


class Rank(Worker):
    async def receive(self) -> None:
        await self.recv("ranks", (self._rank + 1) % self._world_size, timeout=600)

    def receive_blocking(self) -> None:
        self.recv("ranks", (self._rank + 1) % self._world_size, timeout=600)

    def wait_for_event(self) -> None:
        threading.Event().wait()

    def rest(self) -> None:
        sleep(600)

    async def take(self, channel: Channel) -> list[int]:
        return [item async for item in channel]


def launch(cluster: Cluster, *nodes: int) -> Any:
    return Rank.create_group().launch(cluster, NodePlacementStrategy(list(nodes)), name="ranks")


async def wait_for(call: Any) -> None:
    """Wait as a driver does: one that waits for nothing may do anything next."""
    await call


@pytest.mark.parametrize(
    ("method", "kind", "told"),
    [
        ("receive", "deadlock", "ranks:0-1 wait for each other"),
        ("receive_blocking", "deadlock", "ranks:0-1 wait for each other"),
        ("wait_for_event", "nobody left", "threading.Event.wait()"),
        ("rest", "busy", "sleep"),
    ],
)
def test_the_verdict_is_that_of_a_real_run(method: str, kind: str, told: str) -> None:
    async def main() -> Any:
        async with Cluster(log_to_driver=False) as cluster:
            waiting = asyncio.ensure_future(wait_for(getattr(launch(cluster, 0, 1), method)()))
            await asyncio.sleep(10)
            verdict = await cluster.why()
            waiting.cancel()
            return verdict

    verdict = SimCluster(nodes=2).run(main)
    assert (verdict.kind, told in str(verdict)) == (kind, True), verdict


def test_the_kernels_count_of_a_threads_sleeps_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(own_threads, "_sleeps", lambda _: next(numbers))
    test_the_verdict_is_that_of_a_real_run("wait_for_event", "nobody left", "threading.Event.wait()")


def test_a_daemon_that_stands_still_for_longer_than_its_lease_is_lost() -> None:
    sim = SimCluster(nodes=2)

    async def main() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            call = launch(cluster, 1).receive()
            await asyncio.sleep(1)
            sim.stop_node(1, 60)
            async with asyncio.timeout(20):
                with pytest.raises(NodeLost, match="no sign of life"):
                    await call

    sim.run(main)


def test_a_loop_over_a_channel_that_could_not_be_made_does_not_just_end() -> None:
    sim = SimCluster(nodes=2)

    async def main() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            group = launch(cluster, 0)
            await group
            sim.kill_node(1)
            await asyncio.sleep(5)
            with pytest.raises(ClosedError, match=r"'doomed' could not be made: node 1 .* is lost"):
                await group.take(Channel.create("doomed", cluster=cluster, node_rank=1))

    sim.run(main)
