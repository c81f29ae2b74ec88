"""Code that ended processes leave behind: it changes no process that runs, and not the one that simulates."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import os
import subprocess
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from rlinf_async import Cluster, NodeLost, NodePlacementStrategy, Worker, WorkerDied
from rlinf_async.testing import SimCluster, SimulationError
from tests._support.weight_parts import SocketLink

VARIABLE = "RLINF_TEST_LAST_ACT"


def set_variable() -> None:
    os.environ[VARIABLE] = "set"


def start_thread() -> None:
    threading.Thread(target=threading.Event().wait, args=(5.0,), daemon=True).start()


def wait() -> None:
    threading.Event().wait(1.0)


def start_program() -> None:
    subprocess.run(["true"])


class Rollout(Worker):
    outcomes: ClassVar[dict[str, str]] = {}
    """By name, how the last acts of a dead rank have ended."""

    async def rank(self) -> int:
        return self._rank

    async def stay(self) -> None:
        self.link = SocketLink.invite("policy")
        atexit.register(self.link.close)
        LINKS[:] = [weakref.ref(self.link)]
        try:
            await asyncio.sleep(60)
        finally:
            for act in (set_variable, start_thread, wait, start_program):
                self.outcomes[act.__name__] = outcome(act)

    def fork(self) -> None:
        os.fork()

    async def stay_kept(self) -> None:
        TASKS.append(asyncio.current_task())
        await asyncio.sleep(60)

    async def stop_before_a_turn(self) -> None:
        """Stop this rank where a coroutine is about to go on, to which nothing refers but the loop."""
        turn = asyncio.get_running_loop().create_future()

        async def await_turn() -> None:
            try:
                await turn
            finally:
                set_variable()

        asyncio.ensure_future(await_turn())
        await asyncio.sleep(0.1)
        turn.set_result(None)
        SIM[0].stop("r", 0, 60.0)


SIM: list[SimCluster] = []
TASKS: list[asyncio.Task[Any] | None] = []
LINKS: list[weakref.ref[SocketLink]] = []


def outcome(act: Callable[[], None]) -> str:
    try:
        act()
    except BaseException as error:
        return type(error).__name__
    return "done"


def launch(cluster: Cluster) -> Any:
    return Rollout.create_group().launch(cluster, NodePlacementStrategy([0]), name="r")


def kill_in(method: str) -> None:
    """Run a simulation whose only rank is killed in a call."""
    sim = SimCluster(seed=1)

    async def main() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            call = getattr(launch(cluster), method)()
            await asyncio.sleep(1)
            sim.kill("r", 0)
            with pytest.raises(WorkerDied):
                await call

    sim.run(main)


def test_a_death_leaves_nothing_in_the_process_that_simulates(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: ended.append("by its exit functions"))
    logger, threads = Worker.logger, threading.enumerate()
    Rollout.outcomes.clear()
    kill_in("stay")
    dead = {"start_thread": "SimulatedDeath", "wait": "SimulatedDeath", "start_program": "SimulationError"}
    assert Rollout.outcomes == {"set_variable": "done"} | dead
    assert ended == []
    assert VARIABLE not in os.environ
    for thread in {*threading.enumerate()}.difference(threads):
        thread.join(5)  # witnesses are real threads, and end on their own
    assert (Worker.logger, threading.enumerate()) == (logger, threads)
    gc.collect()
    assert LINKS[0]() is None
    link = SocketLink.invite("policy")
    assert link._sockets is not None
    assert link._sockets.hub.process.pid == os.getpid(), "the loop of private sockets is a dead rank's"
    link.close()


def test_a_fork_which_would_copy_all_simulated_processes_is_refused() -> None:
    async def main() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            await launch(cluster).fork()

    with pytest.raises(SimulationError, match="r:0 wants a forked process, and a simulation has none"):
        SimCluster(seed=1).run(main)


def test_a_task_that_outlives_its_simulation_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of a dead rank that the test still refers to, and lets go of later."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: None)
    kill_in("stay_kept")
    assert len(TASKS) == 1
    TASKS.clear()
    gc.collect()
    assert ended == []


def test_a_death_changes_no_other_process() -> None:
    sim = SimCluster(seed=1)
    SIM[:] = [sim]

    async def main() -> bool:
        async with Cluster(log_to_driver=False) as cluster:
            call = launch(cluster).stop_before_a_turn()
            await asyncio.sleep(1)
            sim.kill("r", 0)
            with contextlib.suppress(WorkerDied):
                await call
            return VARIABLE in os.environ

    assert sim.run(main) is False
    SIM.clear()


def test_a_driver_that_closes_nothing_is_let_go_of() -> None:
    clusters = []

    def main() -> None:
        clusters.append(weakref.ref(Cluster(log_to_driver=False)))

    SimCluster(seed=1).run(main)
    gc.collect()
    assert clusters[0]() is None


@pytest.mark.parametrize("fault", ["cut_way", "stop_node"])
def test_a_node_that_is_silent_for_a_moment_is_late_and_not_lost(fault: str) -> None:
    sim = SimCluster(nodes=2, seed=3)

    async def main() -> tuple[list[int], float]:
        loop = asyncio.get_running_loop()
        async with Cluster(log_to_driver=False) as cluster:
            group = Rollout.create_group().launch(cluster, NodePlacementStrategy([0, 1]), name="rollout")
            await group.rank()
            began = loop.time()
            sim.stop_node(1, 2.0) if fault == "stop_node" else sim.cut_way(0, 1, 2.0)
            return await group.rank(), loop.time() - began

    ranks, seconds = sim.run(main)
    assert ranks == [0, 1]
    assert 2 <= seconds < 6  # a link that was cut goes on a while after the cut


@pytest.mark.parametrize("restart", [None, "group"])
def test_each_rank_of_a_node_that_is_lost_while_its_group_is_launched_is_told_dead(restart: str | None) -> None:
    told: list[set[int]] = []
    for tenths_of_ms in range(150, 350, 5):
        sim = SimCluster(nodes=3, seed=tenths_of_ms)

        async def main(sim: SimCluster = sim, moment_s: float = tenths_of_ms / 10_000) -> None:
            async with Cluster(log_to_driver=False) as cluster:
                options: dict[str, Any] = {} if restart is None else {"restart": restart}
                placement = NodePlacementStrategy([1, 1, 2])
                group = Rollout.create_group().launch(cluster, placement, name="r", **options)
                dead: set[int] = set()
                group.on_death(lambda death: dead.add(death.rank))
                await asyncio.sleep(moment_s)
                sim.kill_node(1)
                await asyncio.sleep(30)
                with contextlib.suppress(NodeLost, WorkerDied):
                    await group
                if not group._members.failed:  # else there never were any ranks
                    told.append(dead)

        sim.run(main)
    assert told
    assert all(dead >= {0, 1} for dead in told), told


class Member(Worker):
    async def cast(self, value: str) -> str:
        """Its value, which rank 0 gives to all, or the name of the error."""
        try:
            given = value if self._rank == 0 else None
            return str(await self.broadcast(given, [("members", [0, 1, 2])], src=("members", 0), async_op=True))
        except Exception as error:
            return type(error).__name__


@pytest.mark.parametrize("seed", range(3))
def test_a_broadcast_behind_a_death_brings_no_value_of_one_that_has_failed(seed: int) -> None:
    sim = SimCluster(nodes=2, seed=seed)

    async def main() -> list[list[str]]:
        async with Cluster(log_to_driver=False) as cluster:
            place = NodePlacementStrategy([0, 1, 1])
            group = await Member.create_group().launch(cluster, place, name="members")
            assert sim.kill("members", 2)
            await asyncio.sleep(1.0)
            found = [await group[rank].cast(value) for value in ("first", "second", "third") for rank in (1, 0)]
            return found[::2]  # of rank 1, which has failed before the value comes

    assert sim.run(main) == [["WorkerDied"]] * 3
