"""``SimCluster``: a run's daemons, workers and drivers in one process, in virtual time, determined by a seed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import gc
import inspect
import io
import itertools
import logging
import operator
import os
import random
import shutil
import sys
import tempfile
import traceback
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from types import MethodType
from typing import Any, Final, TypeVar

import numpy
import torch

from rlinf_async._client import client
from rlinf_async._core import clock
from rlinf_async._core.own_logger import NAMES, own_logger
from rlinf_async._core.pool import pool
from rlinf_async._inspection import own_tasks
from rlinf_async._simulation.faults import Faults
from rlinf_async._simulation.real_world import refused
from rlinf_async._simulation.scheduler import START_S, Scheduler, SimulationError, ThreadActor
from rlinf_async._simulation.sim_loop import LoopActor, SimLoop, SimTask
from rlinf_async._simulation.sim_network import Fabric
from rlinf_async._simulation.sim_node import SimNode
from rlinf_async._simulation.sim_process import SimProcess
from rlinf_async._simulation.sim_worker import SimWorkerProcess
from rlinf_async._simulation.stand_ins import installed, run_job
from rlinf_async._wire.node_config import NodeConfig
from rlinf_async.errors import ClosedError, ConfigError
from rlinf_async.settings import variables_of

T = TypeVar("T")

_RUN: Final = "5eed5eed"
_FIRST_PID: Final = 5000
_COLLECTIONS: Final = 5


class SimCluster:
    """A simulated cluster.

    Args:
        nodes: number of nodes.
        seed: seed of every choice, such as the next actor to run and each message's delay.
        faults: random faults, at times chosen by the seed.
        drift: largest relative deviation of a node's clock rate: 0.01 is one percent.
        settings: maps names of variables in ``docs/settings.md``, with or without ``RLINF_``, to values. Variables in
            the test's own environment have no effect.

    Raises:
        ConfigError: ``nodes`` or ``drift`` is out of bounds, a setting is unknown, or its value is out of bounds.

    Example:
        async def main() -> int:
            async with Cluster(log_to_driver=False) as cluster:
                group = Rollout.create_group().launch(cluster)
                return await group.step()

        SimCluster(nodes=3, seed=7).run(main)
    """

    def __init__(
        self,
        nodes: int = 1,
        seed: int = 0,
        faults: Faults | None = None,
        drift: float = 0.0,
        settings: Mapping[str, float] | None = None,
    ) -> None:
        if nodes < 1:
            raise ConfigError(f"nodes must be at least 1, got {nodes!r}")
        if not 0 <= drift < 1:  # a clock that stands still or runs back is none
            raise ConfigError(f"drift must be from 0 to less than 1, got {drift!r}")
        self._environ = variables_of(settings or {}, "in SimCluster(settings=)")
        self.num_nodes = nodes
        self._faults = faults
        self._drift = drift
        self._rates: list[float] = []
        self.seed = operator.index(seed)
        self.scheduler: Scheduler
        self.nodes: list[SimNode] = []
        self.copies: list[str] = []
        """Descriptions of ranks that had two processes at the same time."""
        self._driver: SimProcess | None = None
        self._finalizers: set[Any] = set()

    def __repr__(self) -> str:
        return f"<SimCluster [{len(self.nodes)} nodes, seed {self.seed}]>"

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.scheduler.now - START_S

    def run(self, main: Callable[..., Coroutine[Any, Any, T]] | Callable[..., T], *args: Any) -> T:
        """Run a driver, a coroutine function or a blocking function, in the cluster.

        Args:
            args: arguments of ``main``.

        Returns:
            The result of ``main``; its exceptions are raised.

        Raises:
            SimulationError: every actor waits forever, or one waits for something not simulated.
            TypeError: ``main`` does not take these arguments.
        """
        inspect.signature(main).bind(*args)  # raises for wrong arguments before anything has started
        folder = Path(tempfile.mkdtemp(prefix="rlinf-sim-"))
        scheduler = self.scheduler = Scheduler(self.seed)
        real_clock, hooks = clock.monotonic, sys.get_asyncgen_hooks()
        collects = gc.isenabled()
        self._finalizers = set(weakref.finalize._registry)  # type: ignore[attr-defined]
        home = SimProcess(scheduler, "outside", os.getpid(), dict(os.environ))
        home.keep()
        scheduler.current = home
        grave = SimProcess(scheduler, "grave", 0, dict(os.environ))
        grave.has_ended = True
        scheduler.grave = grave
        gc.disable()
        gc.freeze()
        generators = _seed_generators(self.seed)
        clock.monotonic = scheduler.read_clock
        try:
            with installed(scheduler), refused(scheduler), warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # a killed process closes nothing
                try:
                    return self._run(folder, main, args)
                except SimulationError as error:
                    traceback.clear_frames(error.__traceback__)  # frames would keep the whole simulation alive
                    raise
                finally:
                    first = sys.exc_info()[1]
                    with _silence(), contextlib.ExitStack() as cleanup:
                        cleanup.callback(home.enter)
                        cleanup.callback(self._discard_remains)
                        if first is not None:  # a Ctrl-C, for example, in a turn that does not end
                            cleanup.enter_context(contextlib.suppress(SimulationError))
                        self._end()
        finally:
            clock.monotonic = real_clock
            generators()
            sys.set_asyncgen_hooks(*hooks)
            scheduler.close()
            gc.unfreeze()
            if collects:
                gc.enable()
            shutil.rmtree(folder, ignore_errors=True)

    def _discard_remains(self) -> None:
        """Drop the remains of ended processes, discarding their coroutines' output."""
        # A garbage-collected coroutine runs its `finally` blocks. If the host process's globals were installed, a
        # worker's call would mistake the host for a forked child and end it, after running all exit functions.
        # tests/simulation/test_sim_deaths.py::test_a_death_leaves_nothing_in_the_process_that_simulates
        self.scheduler.grave.enter()
        _close_coroutines()
        self.nodes.clear()
        self._driver = None
        del self.fabric
        pool.close()  # shared by all simulated processes
        for finalizer in list(weakref.finalize._registry.keys() - self._finalizers):  # type: ignore[attr-defined]
            # A finalizer whose callback is a bound method belongs to an object of an ended process.
            if isinstance((finalizer.peek() or (None, None))[1], MethodType):
                finalizer.detach()
        for _ in range(_COLLECTIONS):  # the next collection frees an object revived by a finalizer
            self.scheduler.forget()
            if not gc.collect():
                break

    def _run(
        self, folder: Path, main: Callable[..., Coroutine[Any, Any, T]] | Callable[..., T], args: Sequence[Any]
    ) -> T:
        scheduler = self.scheduler
        fabric = self.fabric = Fabric(scheduler)
        pids = itertools.count(_FIRST_PID)
        for number in range(self.num_nodes):
            config = NodeConfig(
                run=_RUN, marker="", node=number, num_nodes=self.num_nodes, name=f"node{number}", bind="127.0.0.1"
            )
            rate = 1 + scheduler.random.uniform(-self._drift, self._drift) if self._drift else 1.0
            self._rates.append(rate)
            self.nodes.append(
                SimNode(scheduler, fabric, config, folder, lambda: next(pids), self._note_copies, self._environ, rate)
            )
        scheduler.run_until(lambda: all(node.control.find_event("up") for node in self.nodes))
        peers = []
        for node in self.nodes:
            up = node.control.find_event("up")
            assert up is not None
            peer = {"node": node.number, "name": node.process.name, "hidden": False, "labels": []}
            peers.append(peer | {"address": up["address"], "facts": up["facts"], "log_dir": up["log_dir"]})
        for node in self.nodes:
            node.control.command({"op": "peers", "peers": peers})
        scheduler.run_until(lambda: all(node.control.find_event("ready") for node in self.nodes))
        environ = {**self._environ, "RLINF_NODE_SOCKET": str(self.nodes[0].boot.socket_path)}
        driver = SimProcess(scheduler, "driver", next(pids), environ, self._rates[0])
        self._driver = driver
        if self._faults is not None:
            self._faults.begin(self)
        driver.enter()
        if inspect.iscoroutinefunction(main):
            loop = SimLoop(scheduler)
            driver.actors.append(LoopActor(scheduler, driver, loop, "driver"))
            task = loop.create_task(main(*args), name="driver")
            scheduler.run_until(task.done)
            result: Any = task.result
        else:
            future: concurrent.futures.Future[Any] = concurrent.futures.Future()
            driver.actors.append(
                ThreadActor(
                    scheduler, driver, "driver", functools.partial(run_job, future, functools.partial(main, *args))
                )
            )
            scheduler.run_until(future.done)
            result = future.result
        for node in self.nodes:
            if not node.has_ended:
                node.control.command({"op": "stop"})
        scheduler.run_until(lambda: all(node.has_ended for node in self.nodes))
        found: T = result()
        return found

    def _note_copies(self, born: SimWorkerProcess) -> None:
        for node in self.nodes:
            for worker in node.workers:
                same = (worker.setup.group, worker.setup.rank) == (born.setup.group, born.setup.rank)
                if same and worker is not born and worker.pid and not worker.process.has_ended:
                    self.copies.append(f"pid {born.pid} is {born.process.name}, and so is pid {worker.pid} still")

    def _end(self) -> None:
        processes = [node.process for node in self.nodes]
        processes += [worker.process for node in self.nodes for worker in node.workers if worker.pid]
        if self._driver is not None:
            processes.append(self._driver)
            if self.scheduler.running is None:  # otherwise, a turn has not ended, and its thread may hold locks
                self._end_early(self._driver)
        for process in processes:
            if not process.has_ended:
                process.end()
            for actor in process.actors:
                if hasattr(actor, "end"):
                    actor.end()

    def _end_early(self, driver: SimProcess) -> None:
        # An error may have ended the simulation before its processes, whose sockets, pipes and threads are real.
        # tests/simulation/test_sim_cluster.py::test_nothing_is_left_of_a_simulation
        for node in self.nodes:
            node.kill()
        with driver.entered():
            for each in client._all_clients():
                if each.closed is None:
                    each.end_without_loop(ClosedError("the simulation has ended"))

    # -- faults -------------------------------------------------------------------------------------------------

    def kill(self, group: str, rank: int) -> bool:
        """Kill a rank's process, as if by SIGKILL; return False if the rank has none."""
        worker = self.find(group, rank)
        self.scheduler.note("fault", f"kill {group}:{rank}")
        if worker is not None:
            worker.kill()
        return worker is not None

    def stop(self, group: str, rank: int, seconds: float) -> bool:
        """Stop a rank's process, as if by SIGSTOP, and continue it later; return False if the rank has none."""
        worker = self.find(group, rank)
        self.scheduler.note("fault", f"stop {group}:{rank} for {seconds:g} s")
        if worker is not None:
            worker.process.stop_for(seconds)
        return worker is not None

    def slow(self, group: str, rank: int, turn_s: float) -> bool:
        """Make every later turn of a rank's loops take ``turn_s`` seconds; return False if the rank has no process."""
        worker = self.find(group, rank)
        self.scheduler.note("fault", f"each turn of {group}:{rank} takes {turn_s:g} s")
        if worker is not None:
            worker.process.turn_s = turn_s
        return worker is not None

    def starve(self, group: str, rank: int, seconds: float) -> bool:
        """For ``seconds`` seconds, drop every descriptor sent to a rank; return False if the rank has no process."""
        worker = self.find(group, rank)
        self.scheduler.note("fault", f"{group}:{rank} gets no descriptors for {seconds:g} s")
        if worker is not None:
            worker.process.starved_until = self.scheduler.now + seconds
        return worker is not None

    def sever(self, group: str, rank: int, how: str) -> None:
        """Break the direct sockets of a rank, by ``shutdown`` or ``close``."""
        worker = self.find(group, rank)
        self.scheduler.note("fault", f"sever the sockets of {group}:{rank} ({how})")
        if worker is not None:
            worker.sever(how)

    def cut(self, node: int, seconds: float) -> None:
        """Cut a node off from all others for some seconds, as if its cable were pulled."""
        self.scheduler.note("fault", f"cut node {node} off for {seconds:g} s")
        for other in range(self.num_nodes):
            if other != node:
                self.fabric.cut(node, other, seconds)
                self.fabric.cut(other, node, seconds)

    def cut_pair(self, one: int, other: int, seconds: float) -> None:
        """Cut two nodes off from each other for some seconds; both still reach all other nodes."""
        self.scheduler.note("fault", f"no way between nodes {one} and {other} for {seconds:g} s")
        self.fabric.cut(one, other, seconds)
        self.fabric.cut(other, one, seconds)

    def cut_way(self, source: int, target: int, seconds: float) -> None:
        """Hold up all data from one node to another for some seconds; data in the other direction arrives."""
        self.scheduler.note("fault", f"no way from node {source} to node {target} for {seconds:g} s")
        self.fabric.cut(source, target, seconds)

    def stop_node(self, node: int, seconds: float) -> None:
        """Stop a daemon, as if by SIGSTOP, and continue it later; its workers keep running.

        The guardian of a node other than node 0 is not stopped, and kills the daemon once its lease has expired.
        """
        self.scheduler.note("fault", f"stop the daemon of node {node} for {seconds:g} s")
        self.nodes[node].stop_for(seconds)
        self.fabric.expect_silence(seconds)

    def kill_node(self, node: int) -> None:
        """Kill a daemon, as if by SIGKILL."""
        self.scheduler.note("fault", f"kill the daemon of node {node}")
        self.nodes[node].kill()

    @property
    def ranks(self) -> list[tuple[str, int]]:
        return sorted(
            {
                (worker.setup.group, worker.setup.rank)
                for node in self.nodes
                for worker in node.workers
                if worker.pid and not worker.process.has_ended
            }
        )

    @property
    def driver_threads(self) -> list[str]:
        actors = [] if self._driver is None else self._driver.actors
        return [actor.name for actor in actors if isinstance(actor, ThreadActor) and not actor.has_ended]

    def find(self, group: str, rank: int) -> SimWorkerProcess | None:
        found = [
            worker
            for node in self.nodes
            for worker in node.workers
            if worker.setup.group == group and worker.setup.rank == rank and worker.pid and not worker.process.has_ended
        ]
        return found[-1] if found else None


def _close_coroutines() -> None:
    """End the coroutines of all simulated tasks, with an ended process's globals installed.

    A program may keep some coroutines alive. Left open, they would run their ``finally`` blocks in the host process at
    a later garbage collection, where a worker's call would mistake the host for a forked child and end it.
    """
    # tests/simulation/test_sim_deaths.py::test_a_task_that_outlives_its_simulation_ends_nothing
    for task in own_tasks.all_tasks():
        if isinstance(task, SimTask):
            with contextlib.suppress(BaseException):
                task.get_coro().close()


def _seed_generators(seed: int) -> Callable[[], None]:
    """Seed the random generators shared by all simulated processes; return a function that restores them."""
    state = random.getstate()
    numbers, tensors = numpy.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed & 0xFFFFFFFFFFFFFFFF)

    def restore() -> None:
        random.setstate(state)
        numpy.random.set_state(numbers)
        torch.set_rng_state(tensors)

    return restore


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discard errors and log lines from ended processes."""
    unraisable, disabled, stderr = sys.unraisablehook, logging.root.manager.disable, sys.stderr
    own = {logger: logger.level for logger in map(own_logger, NAMES)}
    sys.unraisablehook = lambda _: None
    logging.disable(logging.CRITICAL)
    for logger in own:
        logger.setLevel(logging.CRITICAL + 1)
    sys.stderr = io.StringIO()
    try:
        yield
    finally:
        sys.unraisablehook = unraisable
        logging.disable(disabled)
        for logger, level in own.items():
            logger.setLevel(level)
        sys.stderr = stderr
