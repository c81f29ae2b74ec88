"""The simulated cluster: drivers of both kinds, faults, time, determinism, and errors of what is not simulated."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf_async import (
    Channel,
    ClosedError,
    Cluster,
    ConfigError,
    LaunchError,
    NodePlacementStrategy,
    Worker,
    WorkerDied,
    WorkerGroup,
    concurrent,
)
from rlinf_async.testing import Faults, SimCluster, SimulationError, monotonic, sleep
from rlinf_async.testing.pytest_plugin import simulate  # noqa: F401  # a fixture

CHECKOUT = Path(__file__).resolve().parents[2]


class Rollout(Worker):
    cancelled = False
    open_streams = 0

    async def double(self, number: int) -> int:
        return 2 * number

    def block(self, seconds: float) -> float:
        began = monotonic()
        sleep(seconds)
        return monotonic() - began

    @concurrent
    async def ask(self) -> str:
        await asyncio.sleep(1)
        return "asked"

    async def size(self, content: bytes) -> int:
        return len(content)

    async def exit(self) -> None:
        os._exit(7)

    async def wait(self) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def was_cancelled(self) -> bool:
        return self.cancelled

    async def count(self, most: int) -> AsyncIterator[int]:
        self.open_streams += 1
        try:
            for number in range(most):
                yield number
        finally:
            self.open_streams -= 1

    async def how_many(self) -> int:
        return self.open_streams

    async def environment(self) -> tuple[int, str | None]:
        return self._rank, os.environ.get("RANK")


def launch(cluster: Cluster, nodes: list[int], **options: object) -> object:
    return Rollout.create_group().launch(cluster, NodePlacementStrategy(nodes), name="rollout", **options)


def test_coroutines_call_workers_on_all_nodes() -> None:
    async def main() -> list[int]:
        async with Cluster(log_to_driver=False) as cluster:
            return await launch(cluster, [0, 1, 2, 2]).double(21)

    assert SimCluster(nodes=3, seed=1).run(main) == [42, 42, 42, 42]


def test_a_driver_without_a_loop_and_methods_that_block_take_virtual_time() -> None:
    def main() -> tuple[list[float], float]:
        with Cluster(log_to_driver=False) as cluster:
            began = monotonic()
            return launch(cluster, [0, 1]).block(3600.0).wait(), monotonic() - began

    began = time.monotonic()
    blocked, seconds = SimCluster(nodes=2, seed=1).run(main)
    assert blocked == pytest.approx([3600.0, 3600.0])
    assert 3600 <= seconds < 3601
    assert time.monotonic() - began < 60


def test_a_sleep_of_the_standard_library_takes_virtual_time() -> None:
    def main() -> float:
        began = monotonic()
        time.sleep(2.0)
        return monotonic() - began

    assert SimCluster().run(main) == pytest.approx(2.0)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_launch_that_is_refused_a_name_leaves_the_group_that_has_it(is_cancelled: bool) -> None:
    class Nesting(Worker):
        async def nest(self) -> list[int]:
            async with Cluster() as one, Cluster() as other:
                first = Rollout.create_group().launch(one, NodePlacementStrategy([0]), name="inner")
                second = Rollout.create_group().launch(other, NodePlacementStrategy([0]), name="inner")
                if not is_cancelled:
                    with pytest.raises(ValueError, match="a group named 'inner' exists already"):
                        await second.double(1)
                await second.close()
                return await first.double(2)

    async def main() -> list[list[int]]:
        async with Cluster(log_to_driver=False) as cluster:
            group = Nesting.create_group().launch(cluster, NodePlacementStrategy([1]), name="outer")
            return [*await group.nest(), *await group.nest()]

    assert SimCluster(nodes=2, seed=1).run(main) == [[4], [4]]


def test_the_close_of_a_launch_that_has_failed_leaves_the_next_group_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object) -> int:
        raise LaunchError("no port is free")

    async def main() -> list[int]:
        async with Cluster(log_to_driver=False) as cluster:
            with monkeypatch.context() as patch:
                patch.setattr("rlinf_async._cluster.launch.open_store", refuse)
                failed = Rollout.create_group().launch(cluster, NodePlacementStrategy([0]), name="rollout")
                with pytest.raises(LaunchError):
                    await failed
            group = await Rollout.create_group().launch(cluster, NodePlacementStrategy([0]), name="rollout")
            await failed.close()
            return await group.double(2)

    assert SimCluster(nodes=1, seed=1).run(main) == [4]


def test_the_close_of_a_group_that_was_found_by_name_and_has_ended_leaves_the_next_group_of_its_name() -> None:
    async def main() -> list[list[int]]:
        async with Cluster(log_to_driver=False) as cluster:
            first = await Rollout.create_group().launch(cluster, NodePlacementStrategy([0]), name="rollout")
            found, again = [await cluster.find_group(Rollout, "rollout") for _ in range(2)]
            answers = [await found.double(1)]
            await found.close()
            with pytest.raises(ClosedError, match="its group was closed"):
                await first.double(1)
            await first.close()
            second = await Rollout.create_group().launch(cluster, NodePlacementStrategy([0]), name="rollout")
            await again.close()
            answers.append(await second.double(2))
            return [*answers, await (await cluster.find_group(Rollout, "rollout")).double(3)]

    assert SimCluster(nodes=1, seed=1).run(main) == [[2], [4], [6]]


def test_a_launch_that_finds_no_descriptor_leaves_its_name_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no descriptor is left")

    def main() -> list[int]:
        with Cluster(log_to_driver=False) as cluster:
            place = NodePlacementStrategy([0])
            with monkeypatch.context() as patch:
                patch.setattr("rlinf_async._group.members.pack_body", refuse)
                with pytest.raises(OSError, match="no descriptor"):
                    Rollout.create_group().launch(cluster, place, name="rollout")
            return Rollout.create_group().launch(cluster, place, name="rollout").double(2).wait()

    assert SimCluster(nodes=1, seed=1).run(main) == [4]


def test_each_process_has_an_environment_and_context_of_its_own() -> None:
    async def main() -> list[tuple[int, str | None]]:
        async with Cluster(log_to_driver=False) as cluster:
            return await launch(cluster, [0, 0, 0]).environment()

    before = dict(os.environ)
    assert SimCluster(seed=2).run(main) == [(0, "0"), (1, "1"), (2, "2")]
    assert dict(os.environ) == before


class Seeker(Worker):
    async def find(self) -> None:
        self.found = await WorkerGroup.from_group_name(Rollout, "rollout")

    async def ask(self) -> list[int]:
        return await self.found.double(21)


@pytest.mark.parametrize("stopped_at", [0.0001 * number for number in range(12)])
def test_a_group_that_was_found_while_its_rank_died_means_the_next_one(stopped_at: float) -> None:
    """It stands still with the answer to its search unread, and finds the rank's return behind it."""
    sim = SimCluster(nodes=2, seed=1)

    async def main() -> list[list[int]]:
        async with Cluster(log_to_driver=False) as cluster:
            group = launch(cluster, [1], restart="rank")
            seekers = Seeker.create_group().launch(cluster, NodePlacementStrategy([0]), name="seekers")
            await asyncio.gather(group, seekers)
            finding = seekers.find()
            await asyncio.sleep(stopped_at)
            sim.stop("seekers", 0, 3.0)
            await asyncio.sleep(1)
            sim.kill("rollout", 0)
            await finding
            return await seekers.ask()

    assert sim.run(main) == [[42]]


@pytest.mark.parametrize("seed", range(10))
def test_a_call_does_not_overtake_the_cancel_of_an_earlier_one(seed: int) -> None:
    async def main() -> list[bool]:
        async with Cluster(log_to_driver=False) as cluster:
            group = launch(cluster, [0, 0, 1])
            waiting = group.wait()
            await group.double(1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await waiting
            return await group.was_cancelled()

    assert SimCluster(nodes=2, seed=seed).run(main) == [True] * 3


class Asker(Worker):
    async def ask(self, rank: int) -> list[str]:
        """Calls of a worker that is stopped for a moment as soon as it has made them, and what becomes of them."""
        group = await WorkerGroup.from_group_name(Rollout, "rollout")
        calls = [group[rank].double(number) for number in range(3)]
        STOPPED.set()
        return [type(each).__name__ for each in await asyncio.gather(*calls, return_exceptions=True)]


STOPPED = threading.Event()


@pytest.mark.parametrize("killed_after", [0.0, 0.003, 0.015, 0.029, 0.0301, 0.035])
@pytest.mark.parametrize("seed", range(4))
def test_answers_in_a_socket_that_never_arrived_are_failures_of_a_dead_worker(seed: int, killed_after: float) -> None:
    """It had told its daemon that it had answered, and was killed before it heard that they were lost."""
    sim = SimCluster(seed=seed)
    STOPPED.clear()

    async def main() -> list[str]:
        async with Cluster(log_to_driver=False) as cluster:
            await launch(cluster, [0])
            asker = await Asker.create_group().launch(cluster, NodePlacementStrategy([0]), name="asker")
            sim.starve("asker", 0, 10.0)
            call = asker.ask(0)
            while not STOPPED.is_set():
                await asyncio.sleep(0)
            sim.stop("asker", 0, 0.03)
            sim.scheduler.after(killed_after, lambda: sim.kill("rollout", 0))
            async with asyncio.timeout(20):
                return (await call)[0]

    assert set(sim.run(main)) <= {"list", "WorkerDied"}


@pytest.mark.parametrize("killed_after", [0.0, 0.003, 0.015, 0.029, 0.0301, 0.035])
@pytest.mark.parametrize("seed", range(4))
def test_that_its_rank_is_back_by_then_changes_nothing(seed: int, killed_after: float) -> None:
    """The call has gone to the worker that is dead, whoever has its rank when the caller goes on."""
    sim = SimCluster(seed=seed)
    STOPPED.clear()

    async def main() -> list[str]:
        async with Cluster(log_to_driver=False) as cluster:
            await launch(cluster, [0], restart="rank")
            asker = await Asker.create_group().launch(cluster, NodePlacementStrategy([0]), name="asker")
            sim.starve("asker", 0, 10.0)
            call = asker.ask(0)
            while not STOPPED.is_set():
                await asyncio.sleep(0)
            sim.stop("asker", 0, 2.0)
            sim.scheduler.after(killed_after, lambda: sim.kill("rollout", 0))
            async with asyncio.timeout(20):
                return (await call)[0]

    assert set(sim.run(main)) <= {"list", "WorkerDied"}


def test_a_worker_that_ends_itself_has_an_exit_code() -> None:
    async def main() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            with pytest.raises(WorkerDied, match="exited with code 7"):
                await launch(cluster, [0]).exit()

    SimCluster(seed=5).run(main)


def test_a_cut_of_seconds_costs_time_only_and_one_of_longer_than_a_lease_the_node() -> None:
    sim = SimCluster(nodes=3, seed=4)

    async def main() -> tuple[float, str]:
        async with Cluster(log_to_driver=False) as cluster:
            group = launch(cluster, [1, 2])
            await group.double(1)
            began = monotonic()
            sim.cut(2, 9.0)
            await group.double(1)
            seconds = monotonic() - began
            sim.cut(2, 100.0)
            with pytest.raises(Exception, match="no sign of life for") as caught:
                await group.double(1)
            return seconds, type(caught.value).__name__

    seconds, error = sim.run(main)
    assert 9 <= seconds < 12
    assert error == "NodeLost"


@pytest.mark.parametrize("late", [0, 1])
def test_a_cut_costs_no_node_whichever_direction_tcp_takes_up_first(late: int) -> None:
    """Each waits for up to twice the outage before it sends again, and knows nothing of the other one."""
    sim = SimCluster(nodes=2)

    async def main() -> list[int]:
        async with Cluster(log_to_driver=False) as cluster:
            group = await launch(cluster, [1])
            sim.cut(1, 9.9)
            for cable in sim.fabric.cables:
                cable.waits_until = {late: sim.scheduler.now + 19.8, 1 - late: sim.scheduler.now + 9.95}
            await asyncio.sleep(25)
            return await group.double(4)

    assert sim.run(main) == [8]


def test_faults_happen_by_themselves_and_items_arrive_all_the_same() -> None:
    sim = SimCluster(nodes=3, seed=6, faults=Faults(cuts=1, cut_s=5.0, breaks=20))

    async def main() -> list[int]:
        async with Cluster(log_to_driver=False) as cluster:
            launch(cluster, [0, 1, 2])
            channel = Channel.create("items", cluster=cluster, node_rank=2)
            for number in range(60):
                await channel.put(number)
                await asyncio.sleep(1)
            return [await channel.get() for _ in range(60)]

    assert sim.run(main) == list(range(60))
    assert any("fault" in line for line in sim.scheduler.log.kept) or sim.scheduler.log.count > 4000


@pytest.mark.slow
def test_the_log_of_a_seed_is_the_same_in_every_process_also_beside_a_foreign_thread() -> None:
    program = (
        "import sys, threading, logging; logging.disable(logging.CRITICAL)\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "from tests.simulation.play import play\n"
        "print([play(seed).digest for seed in range(6)])\n"
    )
    told = []
    for number in range(2):
        environment = {**os.environ, "PYTHONHASHSEED": str(number), "PYTHONPATH": str(CHECKOUT)}
        command = [sys.executable, "-c", program]
        told.append(subprocess.run(command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=True))
    assert told[0].stdout == told[1].stdout
    assert told[0].stdout.count("'") == 12


def test_two_seeds_are_two_runs() -> None:
    async def main() -> int:
        async with Cluster(log_to_driver=False) as cluster:
            await launch(cluster, [0, 1]).double(1)
            return hash(asyncio.current_task())

    digests, hashes = [], []
    for seed in (1, 1, 2):
        sim = SimCluster(nodes=2, seed=seed)
        hashes.append(sim.run(main))
        digests.append(sim.scheduler.log.digest)
    assert digests[0] == digests[1] != digests[2]
    assert hashes[0] == hashes[1], "the order of a set would depend on the simulations before"


def test_an_hour_in_which_nothing_happens_takes_no_time() -> None:
    sim = SimCluster(nodes=3, seed=1)
    turns = []

    async def main() -> None:
        async with Cluster(log_to_driver=False):
            turns.append(sim.scheduler.steps)
            await asyncio.sleep(3600)
            turns.append(sim.scheduler.steps)

    sim.run(main)
    assert turns[1] - turns[0] < 100


def test_waiting_for_something_that_can_never_come_is_an_error_that_says_who_waits() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(SimulationError, match=r"something still waits:(.|\n)*driver: 1 tasks wait: driver"):
        SimCluster(seed=1).run(main)


def test_something_that_turns_for_ever_is_an_error() -> None:
    async def spin() -> None:
        loop = asyncio.get_running_loop()
        while True:
            turn = loop.create_future()
            loop.call_soon(turn.set_result, None)
            await turn

    with pytest.raises(SimulationError, match="something turns for ever"):
        SimCluster(seed=1).run(spin)


OUTSIDE = """
import os
from rlinf_async import Cluster, NodePlacementStrategy, Worker
from rlinf_async._simulation import scheduler
from rlinf_async.testing import SimCluster

scheduler._MAX_TURN_S = 0.5

class Outside(Worker):
    def wait_outside(self):
        os.read(os.pipe()[0], 1)

async def main():
    async with Cluster(log_to_driver=False) as cluster:
        await Outside.create_group().launch(cluster, NodePlacementStrategy([0]), name="rollout").wait_outside()

SimCluster(seed=1).run(main)
"""


def test_an_interrupt_of_what_is_not_simulated_is_one(tmp_path: Path) -> None:
    interrupt = "import signal, threading\nMAIN = threading.get_ident()\n"
    kill = "        signal.pthread_kill(MAIN, signal.SIGINT)\n"
    program = interrupt + OUTSIDE.replace("        os.read", kill + "        os.read")
    (tmp_path / "outside.py").write_text(program)
    done = subprocess.run([sys.executable, "outside.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


def test_what_is_not_simulated_is_named(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(OUTSIDE)  # a program of its own: the thread waits for ever
    done = subprocess.run([sys.executable, "outside.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert (
        "rollout:0 waits for something that is not simulated (a real sleep, socket, lock or subprocess)" in done.stderr
    )
    assert "in wait_outside" in done.stderr


def test_what_needs_descriptors_reaches_a_rank_that_gets_none() -> None:
    sim = SimCluster(seed=1)

    async def main() -> list[int]:
        async with Cluster(log_to_driver=False) as cluster:
            group = launch(cluster, [0])
            await group.double(1)
            assert sim.starve("rollout", 0, 60.0)
            assert not sim.starve("rollout", 1, 60.0)
            return await group.size(bytes(1 << 20))

    assert sim.run(main) == [1 << 20]
    assert any("gets no descriptors for 60 s" in line for line in sim.scheduler.log.kept)


class Wishful(Worker):
    def make_group(self) -> None:
        torch.distributed.init_process_group("gloo")

    def make_store(self) -> None:
        torch.distributed.TCPStore("127.0.0.1", 1)

    def run_program(self) -> None:
        subprocess.run(["true"])

    async def run_program_later(self) -> None:
        await asyncio.create_subprocess_exec("true")

    def connect(self) -> None:
        socket.create_connection(("127.0.0.1", 9))

    async def connect_later(self) -> None:
        await asyncio.open_connection("127.0.0.1", 9)

    def compute(self) -> None:
        torch.zeros(1).cuda()

    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("make_group", "a process group of torch.distributed"),
        ("make_store", "a store of torch.distributed"),
        ("run_program", "the subprocess ['true']"),
        ("run_program_later", "the subprocess ('true',)"),
        ("connect", "a connection to ('127.0.0.1', 9)"),
        ("connect_later", "a connection to ('127.0.0.1', 9)"),
        ("compute", "a GPU"),
        ("crash", "signal 9"),
    ],
)
def test_what_a_simulation_has_not_is_refused_by_name(method: str, what: str) -> None:
    async def main() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            group = Wishful.create_group().launch(cluster, NodePlacementStrategy([0]), name="wishful")
            await getattr(group, method)()

    with pytest.raises(SimulationError, match=re.escape(f"wishful:0 wants {what}, and a simulation has none")):
        SimCluster().run(main)
    subprocess.run(["true"], check=True)  # outside, everything is as before


def work_at_closed_things() -> list[object]:
    found: list[object] = []
    loop = asyncio.new_event_loop()
    loop.close()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(int).result()
    for late in (lambda: loop.call_soon_threadsafe(int), lambda: executor.submit(int)):
        try:
            found.append(late())
        except RuntimeError as error:
            found.append(str(error))
    ending = threading.Event()
    waiting = threading.Thread(target=ending.wait)
    waiting.start()
    found.append(waiting.is_alive())
    ending.set()
    waiting.join()
    waiting.join()
    found.append(waiting.is_alive())
    ending.clear()
    executor = ThreadPoolExecutor(1)
    running, queued = executor.submit(ending.wait), executor.submit(int)
    executor.shutdown(wait=False, cancel_futures=True)
    ending.set()
    return [*found, running.result(), queued.cancelled()]


def test_closed_loops_executors_and_threads_are_as_in_a_real_process() -> None:
    assert SimCluster().run(work_at_closed_things) == work_at_closed_things()


def test_a_simulated_variable_reaches_no_subprocess_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        os.environ["SOME_VARIABLE"] = "simulated"

    monkeypatch.setenv("SOME_VARIABLE", "real")
    SimCluster().run(main)
    assert subprocess.check_output(["printenv", "SOME_VARIABLE"], text=True) == "real\n"


def test_nothing_is_left_of_a_simulation() -> None:
    async def main() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            await launch(cluster, [0, 1]).double(1)

    async def wait_for_ever() -> None:
        cluster = await Cluster(log_to_driver=False)
        await launch(cluster, [0, 1]).double(1)
        await asyncio.get_running_loop().create_future()

    SimCluster(nodes=2, seed=1).run(main)  # what is made once for good
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for seed in range(5):
        SimCluster(nodes=2, seed=seed).run(main)
        with pytest.raises(SimulationError, match="nothing can run any more"):
            SimCluster(nodes=2, seed=seed).run(wait_for_ever)
    for thread in threading.enumerate():
        if thread.name == "rlinf-blocked-loop":
            thread.join(1)
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_seed_may_be_any_integer() -> None:
    async def main() -> bool:
        return gc.isenabled()

    assert [SimCluster(seed=seed).run(main) for seed in (1 << 70, -1 << 70)] == [False, False]
    assert gc.isenabled()


def test_wrong_arguments_of_a_driver_are_told(simulate: Callable[..., Any]) -> None:  # noqa: F811
    with pytest.raises(TypeError, match="too many positional arguments"):
        simulate(lambda: None)


def test_bad_arguments_say_which() -> None:
    with pytest.raises(TypeError, match="integer"):
        SimCluster(seed="7")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nodes must be at least 1, got 0"):
        SimCluster(nodes=0)
    for rate in (-1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=rf"Faults\(kills={rate}\)"):
            Faults(kills=rate)
    for drift in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match=f"drift must be from 0 to less than 1, got {drift}"):
            SimCluster(drift=drift)
