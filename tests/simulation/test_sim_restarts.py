"""``on_restart`` in a simulated cluster: deaths while it runs, its deadline, and a restart beside the group's end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlinf_async import (
    Cluster,
    LaunchError,
    NodeLost,
    NodePlacementStrategy,
    PeerLost,
    Restart,
    Worker,
    WorkerDied,
    idempotent,
)
from rlinf_async._cluster import supervision
from rlinf_async._group.members import Members
from rlinf_async.group import start_closing
from rlinf_async.testing import SimCluster, sleep

NOTES: list[tuple[int, int, str]] = []
"""By rank and attempt, how hooks have ended; of all processes of a simulation."""


class Ring(Worker):
    """Its hook passes the attempt's number around the ring of its ranks; rank 1 begins, after two seconds."""

    def on_restart(self, restart: Restart) -> None:
        before, after = (self._rank - 1) % 3, (self._rank + 1) % 3
        try:
            if self._rank == 1:
                sleep(2)
                self.send(restart.attempt, "ring", after)
            while self.recv("ring", before) != restart.attempt:
                pass  # of an attempt that a death has ended
            if self._rank != 1:
                self.send(restart.attempt, "ring", after)
        except PeerLost as lost:
            NOTES.append((self._rank, restart.attempt, "lost" if lost.returns else "lost for good"))
            raise
        NOTES.append((self._rank, restart.attempt, "met"))

    @idempotent
    def who(self) -> int:
        return self._rank


class AsyncRing(Ring):
    async def on_restart(self, restart: Restart) -> None:  # type: ignore[override]
        before, after = (self._rank - 1) % 3, (self._rank + 1) % 3
        try:
            if self._rank == 1:
                await asyncio.sleep(2)
                await self.send(restart.attempt, "ring", after)
            while await self.recv("ring", before) != restart.attempt:
                pass
            if self._rank != 1:
                await self.send(restart.attempt, "ring", after)
        except asyncio.CancelledError:
            NOTES.append((self._rank, restart.attempt, "lost"))
            raise
        NOTES.append((self._rank, restart.attempt, "met"))


def launch(cluster: Cluster, cls: Any = Ring, **options: Any) -> Any:
    placement = NodePlacementStrategy([0, 0, 1])
    return cls.create_group().launch(cluster, placement, name="ring", restart="rank", **options)


@pytest.mark.parametrize("cls", [Ring, AsyncRing])
@pytest.mark.parametrize("victims", [(1, 1), (1, 2), (0, 0), (2, 0, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_a_death_ends_the_hooks_and_the_next_attempt_meets(cls: Any, victims: tuple[int, ...], seed: int) -> None:
    """The others wait for the rank that dies, or for one that waits for it."""
    sim = SimCluster(nodes=2, seed=seed)
    NOTES.clear()

    async def main() -> tuple[list[int], list[Restart]]:
        async with Cluster(log_to_driver=False) as cluster:
            group = launch(cluster, cls, max_restarts=9)
            told: list[Restart] = []
            group.on_restart(told.append)
            await group.who()
            sim.kill("ring", 1)
            for victim in victims:
                await asyncio.sleep(1.5)
                sim.kill("ring", victim)
            async with asyncio.timeout(20):
                return await group.who(), told

    found, told = sim.run(main)
    attempts = len(victims) + 1
    counts = tuple((1, *victims).count(rank) for rank in range(3))
    assert found == [0, 1, 2]
    assert told == [Restart(counts, tuple(sorted({1, *victims})), attempts)]
    assert sorted(NOTES[-3:]) == [(rank, attempts, "met") for rank in range(3)]
    for attempt, victim in enumerate(victims, 1):
        lost = {rank for rank, number, how in NOTES if number == attempt and how == "lost"}
        assert lost >= {0, 1, 2} - {victim, 1}


def test_a_restart_by_hand_is_not_counted_and_the_death_after_it_is() -> None:
    sim = SimCluster(nodes=2, seed=1)

    async def main() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            group = launch(cluster, max_restarts=0)
            async with asyncio.timeout(20):
                await group.who()
                await group.restart(1)
                await group.who()
                sim.kill("ring", 1)
                with pytest.raises(WorkerDied, match="died more than 0 times within 600 s"):
                    await group.who()

    sim.run(main)


class Loading(Worker):
    def __init__(self) -> None:
        super().__init__()
        sleep(60)

    async def who(self) -> int:
        return self._rank


def test_a_constructor_has_the_time_that_it_takes_at_a_restart_too() -> None:
    sim = SimCluster(nodes=1, seed=1)

    async def main() -> list[int]:
        async with Cluster(log_to_driver=False) as cluster:
            place = NodePlacementStrategy([0])
            group = Loading.create_group().launch(cluster, place, name="l", restart="rank", call_timeout=10)
            await group
            await group.restart(0)
            return await group.who()

    assert sim.run(main) == [0]


def test_a_death_at_the_launch_is_heard_of_while_another_rank_is_away() -> None:
    """Only the constructor's call tells of it: nobody had listened to its end."""
    sim = SimCluster(nodes=2, seed=529)

    async def main() -> list[int]:
        async with Cluster(log_to_driver=False) as cluster:
            group = launch(cluster, AsyncRing)
            while not sim.kill("ring", 2):
                await asyncio.sleep(0.0001)
            sim.cut(1, 3.0)
            await asyncio.sleep(0.12)
            sim.kill("ring", 1)
            async with asyncio.timeout(30):
                return await group.who()

    assert sim.run(main) == [0, 1, 2]


class Late(Ring):
    """Its hook of rank 2 is busy while a death ends it, and receives afterwards."""

    def on_restart(self, restart: Restart) -> None:
        if self._rank == 0:
            self.send(restart.attempt, "ring", 2)
        if self._rank == 1 and restart.attempt == 1:
            sleep(3600)
        if self._rank == 2:
            if restart.attempt == 1:
                sleep(20)
            NOTES.append((2, restart.attempt, str(self.recv("ring", 0))))


def test_a_hook_that_has_ended_takes_no_message_of_the_next_attempt() -> None:
    sim = SimCluster(nodes=2, seed=1)
    NOTES.clear()

    async def main() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            group = launch(cluster, Late)
            await group.who()
            for _ in range(2):
                sim.kill("ring", 1)
                await asyncio.sleep(1)
            async with asyncio.timeout(60):
                await group.who()

    sim.run(main)
    # The message of the first attempt is still there: the hook that it was for has ended before it took it.
    assert NOTES == [(2, 2, "1")]


class Greeting(Ring):
    """Its second hook has rank 2 send to rank 0, of whose incarnations it knows by their returns alone."""

    async def on_restart(self, restart: Restart) -> None:  # type: ignore[override]
        if restart.attempt == 2 and self._rank == 2:
            await self.send("welcome", "ring", 0)
        elif restart.attempt == 2 and self._rank == 0:
            await self.recv("ring", 2)


class Owner(Worker):
    """Has a group of its own, whose rank 2 may hear of the second return by a slow way."""

    async def own(self, slow_s: float) -> list[int]:
        async with Cluster(log_to_driver=False) as cluster:
            place = NodePlacementStrategy([0, 0, 2])
            group = Greeting.create_group().launch(cluster, place, name="ring", restart="rank")
            for seconds in (0.0, slow_s):
                await group.who()
                self.sim.kill("ring", 0)
                self.sim.cut_way(0, 2, seconds)
            async with asyncio.timeout(60):
                return list(await group.who())

    sim: SimCluster


@pytest.mark.parametrize(("owner", "slow_s"), [(0, 0.0), (1, 0.5)])
@pytest.mark.parametrize("seed", range(20, 23))
def test_a_hook_sends_to_the_incarnation_that_is_back(owner: int, slow_s: float, seed: int) -> None:
    Owner.sim = SimCluster(nodes=3, seed=seed)

    async def main() -> list[list[int]]:
        async with Cluster(log_to_driver=False) as cluster:
            group = Owner.create_group().launch(cluster, NodePlacementStrategy([owner]), name="owner")
            return list(await group.own(slow_s))

    assert Owner.sim.run(main) == [[0, 1, 2]]


class Waiter(Worker):
    async def hear(self) -> tuple[str, bool]:
        """What it hears of rank 0, which sends nothing."""
        with pytest.raises(WorkerDied) as died:
            await self.recv("ring", 0)
        return "\n".join([str(died.value), *getattr(died.value, "__notes__", ())]), died.value.returns


def test_who_waits_for_a_rank_that_is_lost_is_not_told_that_it_is_started_again() -> None:
    sim = SimCluster(nodes=2, seed=1)

    async def main() -> tuple[str, bool]:
        async with Cluster(log_to_driver=False) as cluster:
            group = await launch(cluster, Waiter, max_restarts=1)
            hearing = group[2].hear()
            for _ in range(2):
                await asyncio.sleep(2.0)
                assert sim.kill("ring", 0)
            return tuple((await hearing)[0])  # type: ignore[return-value]

    text, returns = sim.run(main)
    assert not returns
    assert "it is started again" not in text
    assert "restart     it died more than 1 time within 600 s, and is not started again" in text


class Counting(Worker):
    @idempotent
    async def count(self) -> int:
        NOTES.append((self._rank, 0, "begun"))
        await asyncio.sleep(1.0)
        return self._rank


@pytest.mark.parametrize("nodes", [[0, 0], [0, 1]])
def test_a_call_is_made_again_once_on_the_next_incarnation(nodes: list[int]) -> None:
    """The daemon tells of the death, and again when the end of the worker's socket has its caller report the call."""
    NOTES.clear()
    sim = SimCluster(nodes=2, seed=1)

    async def main() -> Any:
        async with Cluster(log_to_driver=False) as cluster:
            group = Counting.create_group().launch(cluster, NodePlacementStrategy(nodes), name="c", restart="rank")
            await group
            call = group.count()
            await asyncio.sleep(0.3)
            sim.kill("c", 0)
            return await call

    assert sim.run(main) == [0, 1]
    assert sorted(NOTES) == [(0, 0, "begun"), (0, 0, "begun"), (1, 0, "begun")]


class Lone(Worker):
    def on_restart(self, restart: Restart) -> None:
        pass

    async def who(self) -> int:
        return self._rank


def test_a_lone_rank_that_cannot_start_on_the_next_node_fails_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has moved there, and no rank is left that could be told."""
    sim = SimCluster(nodes=3, seed=1)

    async def refuse(*_: object) -> None:
        raise LaunchError("no workers")

    async def main() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            group = Lone.create_group().launch(cluster, NodePlacementStrategy([1]), name="lone", restart="rank")
            await group.who()
            monkeypatch.setattr(supervision, "spawn", refuse)
            sim.kill_node(1)
            async with asyncio.timeout(60):
                while True:
                    with pytest.raises(NodeLost) as lost:
                        await group.who()
                    if not lost.value.returns:
                        break

    sim.run(main)


def test_a_restart_that_begins_at_the_close_leaves_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, pause = SimCluster(nodes=2, seed=1), supervision._pause

    async def main() -> Any:
        async with Cluster(log_to_driver=False) as cluster:
            group = Lone.create_group().launch(cluster, NodePlacementStrategy([1]), name="lone", restart="rank")
            await group

            async def close_after(seconds: float) -> None:
                await pause(seconds)
                start_closing(group._members)
                await asyncio.sleep(0)  # the close is the loop's next step, and the spawn the one after it

            monkeypatch.setattr(supervision, "_pause", close_after)
            sim.kill("lone", 0)
            await asyncio.sleep(5)
            return (await cluster.status(1))["groups"]

    assert sim.run(main) == {}


def test_a_constructor_that_finds_no_descriptor_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, refusals = SimCluster(nodes=1, seed=1), [OSError("no descriptor is left")]
    call_now = Members.call_now

    def refuse(members: Members, ranks: Any, method: str, encoded: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return call_now(members, ranks, method, encoded)

    async def main() -> list[int]:
        async with Cluster(log_to_driver=False) as cluster:
            group = Lone.create_group().launch(cluster, NodePlacementStrategy([0]), name="lone", restart="rank")
            await group
            monkeypatch.setattr(Members, "call_now", refuse)
            sim.kill("lone", 0)
            await asyncio.sleep(1)
            async with asyncio.timeout(60):
                return await group.who()

    assert sim.run(main) == [0]
    assert refusals == []
