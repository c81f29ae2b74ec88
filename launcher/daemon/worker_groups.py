"""``WorkerGroups``: manages one node's part of the run's worker groups: starts workers and shuts groups down.

It also keeps the listening sockets of groups' stores, at MASTER_PORT, until rank 0 takes them over.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlinf_async._core import frames, operations
from rlinf_async._core.closing import seconds_for_calls, seconds_until_kill
from rlinf_async._core.descriptors import explained_shortage
from rlinf_async._core.ended_endpoints import EndedEndpoints
from rlinf_async._core.own_logger import own_logger
from rlinf_async._wire.unix import Connection
from rlinf_async.errors import LaunchError

from .black_box import BlackBox
from .endpoint import Endpoint
from .fork_server import MARKER, ForkServer
from .handlers import Requester
from .ports import Ports
from .preloads import PreloadRequest, Refusal, wanted_by
from .probes import Probes
from .process_state import is_stopped, state_of
from .profiled_worker import ProfiledStarter
from .router import Router
from .sub_workers import SubWorkers
from .templates import Templates
from .worker_env import WorkerEnv, prepare
from .worker_process import DESCRIPTORS_PER_WORKER, WorkerProcess, WorkerSetup

logger = own_logger(__name__)

_MAX_FORMER: Final = 64

NewProcess = Callable[[asyncio.AbstractEventLoop, WorkerSetup, str, Path], WorkerProcess]
"""Function that creates a worker process, not yet started."""


@dataclass
class LocalGroup:
    """One node's part of a worker group.

    Attributes:
        number: number of the group's registered name, which distinguishes groups with the same name.
        supervised: True if the owner restarts dead workers.
        close_grace: seconds for workers to end after the owner has ended.
        former: dead workers whose rank was restarted.
        past: endpoints dropped from ``former``, which may own channels that live as long as the group.
        spawning: number of pending requests to start workers.
        store: listening socket for the store at MASTER_PORT, which the next rank 0 takes over.
    """

    number: int
    name: str
    owner: int
    workers: list[Endpoint] = field(default_factory=list)
    supervised: bool = False
    close_grace: float = 0.0
    former: list[Endpoint] = field(default_factory=list)
    past: list[int] = field(default_factory=list)
    spawning: int = 0
    store: socket.socket | None = None
    closed: asyncio.Future[None] | None = None


@dataclass(frozen=True)
class Site:
    """A node's constants, such as its name, its address, its log directory and its workers' environment."""

    run: str
    node: int
    name: str
    address: str
    log_dir: Path
    environment: dict[str, str]
    cpus: int
    sync: Sequence[str] | None = None
    tee: str = "all"
    ports: Sequence[int] | None = None

    def local_path(self, path: str) -> str:
        """Translate a path on the driver's machine into one on this machine (``--sync``)."""
        if self.sync is None:
            return path
        driver_folder, local_folder = self.sync
        if path == driver_folder or path.startswith(driver_folder.rstrip("/") + "/"):
            return local_folder + path[len(driver_folder.rstrip("/")) :]
        return path


class WorkerGroups:
    """Manager of one node's workers, which start and end with their groups.

    Args:
        abandon: closes a group whose owner has ended.
        greet: sends the first frame to an endpoint.
        on_died: called when a worker ends, expectedly or not.
        forget: frees the state of an ended local endpoint.

    Attributes:
        by_number: maps the number of each registered name to its group.
        closing: True once the node is shutting down and starts no more workers.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        site: Site,
        templates: Templates,
        router: Router,
        gone: EndedEndpoints,
        *,
        ports: Ports,
        probes: Probes,
        sub_workers: SubWorkers,
        black_box: BlackBox,
        new_process: NewProcess,
        abandon: Callable[[LocalGroup], None],
        greet: Callable[[Endpoint], None],
        on_died: Callable[[Endpoint], None],
        forget: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._site = site
        self._templates = templates
        self._router = router
        self._gone = gone
        self._ports = ports
        self._probes = probes
        self._sub_workers = sub_workers
        self._black_box = black_box
        self._new_process = new_process
        self._abandon = abandon
        self._greet = greet
        self._on_died = on_died
        self._forget = forget
        self.by_number: dict[int, LocalGroup] = {}
        self.closing = False

    def __repr__(self) -> str:
        return f"<WorkerGroups of node {self._site.node} [{len(self.by_number)} groups]>"

    def group_of(self, endpoint: Endpoint) -> LocalGroup | None:
        return next((group for group in self.by_number.values() if endpoint in group.workers), None)

    async def open_store(self, requester: Requester, op: operations.OpenStore) -> int:
        """Listen on this node's address for rank 0's store; return the port."""
        group = self._group_of(requester.endpoint, op)
        with explained_shortage(self._site.name, f"the store of group '{op.group}'", 1):
            listener = self._ports.listen(f"the store of group '{op.group}'")
        _close_store_of(group)
        group.store = listener
        return int(listener.getsockname()[1])

    async def spawn(self, requester: Requester, op: operations.Spawn) -> list[list[Any]]:
        """Start workers on this node; return each one's ``[number, pid, log path]``, in the order of the request."""
        count = len(op.workers)
        workers = f"{count} worker{'s' * (count != 1)} of group '{op.group}'"
        with explained_shortage(self._site.name, workers, count * DESCRIPTORS_PER_WORKER):
            started = await self._spawn(requester.endpoint, op)
        self._black_box.launched(op, started)
        return started

    async def _spawn(self, owner: int, op: operations.Spawn) -> list[list[Any]]:
        group = self._group_of(owner, op)
        group.supervised, group.close_grace = op.supervised, op.close_grace
        group.spawning += 1
        try:
            for earlier in [each for each in self.by_number.values() if (each.name, each.owner) == (group.name, owner)]:
                if earlier.closed is not None and earlier is not group:
                    # Workers of the earlier group still hold the devices and ports.
                    await asyncio.shield(earlier.closed)
            return await self._spawn_in(group, op)
        finally:
            group.spawning -= 1
            # A concurrent request may still start workers of this group; without this entry, nothing would end them.
            # A group whose ranks are all being restarted keeps its channels and the store.
            # tests/launcher/daemon/test_group_spawns.py::test_a_failed_spawn_leaves_the_groups_other_workers
            if not (group.spawning or group.workers or group.former) and group.closed is None:
                self.by_number.pop(group.number, None)
                _close_store_of(group)

    def _group_of(self, owner: int, op: operations.OpenStore | operations.Spawn) -> LocalGroup:
        """Return a request's group; the first request for a group creates it."""
        group = self.by_number.setdefault(op.number, LocalGroup(op.number, op.group, owner))
        if group.owner != owner:
            raise LaunchError(f"group '{group.name}' (number {op.number}) is another process's, and not '{op.group}'")
        return group

    async def _spawn_in(self, group: LocalGroup, op: operations.Spawn) -> list[list[Any]]:
        name, owner = group.name, group.owner
        self._check_wanted(group)  # first, because a closing node must not start a template and wait for its imports
        self._replace_dead(group, [worker["rank"] for worker in op.workers])
        place = prepare(self._site.environment, op.env, op.node_env, op.python, self._site.name, op.script_env)
        plain = self._templates.get({**place.own, **place.special}, place.python)
        wanted = self._wanted_modules(op, place)

        def on_refused(refusal: Refusal) -> None:
            facts = {"group": name, "node": self._site.name, "module": refusal.module, "reason": refusal.reason}
            logger.info("module %(module)s is not preloaded for group '%(group)s': %(reason)s", facts)
            self._router.send_event(owner, "not_preloaded", facts | {"asked": refusal.module in wanted.asked})

        async with self._templates.preloaded(plain, wanted, on_refused) as template:
            results = await asyncio.gather(
                *(self._start_worker(group, template, place, op, worker) for worker in op.workers),
                return_exceptions=True,
            )
        started = [result for result in results if isinstance(result, Endpoint)]
        for result in results:
            if isinstance(result, BaseException):
                await asyncio.gather(*(self._undo(group, endpoint) for endpoint in started))
                raise result
        return [[endpoint.number, endpoint.process.pid, endpoint.process.log_path] for endpoint in started]  # type: ignore[union-attr]

    def _wanted_modules(self, op: operations.Spawn, place: WorkerEnv) -> PreloadRequest:
        shared = place.variables({})
        threads = self._threads(op, op.workers[0]["env"] if op.workers else {}, shared)
        variables = self._shared_variables(shared, threads)
        python = place.python or self._templates.python
        return wanted_by(op, self._site.name, python, variables, place.paths, self._site.local_path)

    def _threads(self, op: operations.Spawn, own: Mapping[str, str], environment: Mapping[str, str]) -> int:
        workers_here = max(len(op.workers), _first_number(own.get("NODE_LOCAL_WORLD_SIZE")) or 1)
        return _first_number(environment.get("OMP_NUM_THREADS")) or max(1, self._site.cpus // workers_here)

    def _shared_variables(self, environment: Mapping[str, str], threads: int) -> dict[str, str]:
        node = {"RLINF_RUN_ID": self._site.run, "RLINF_NODE_RANK": str(self._site.node)}
        return {"OMP_NUM_THREADS": str(threads), **environment, **node}

    def _replace_dead(self, group: LocalGroup, ranks: Sequence[int]) -> None:
        """Move these ranks' dead workers to ``former``; their channels live as long as the group."""
        for endpoint in group.workers.copy():
            assert endpoint.process is not None
            if endpoint.exit_report is not None and endpoint.process.setup.rank in ranks:
                group.workers.remove(endpoint)
                group.former.append(endpoint)
                self._router.endpoints.pop(endpoint.number, None)
                self._router.replaced[endpoint.number] = endpoint
                self._sub_workers.forget(endpoint)
        for endpoint in group.former[:-_MAX_FORMER]:
            self._router.replaced.pop(endpoint.number, None)
            group.past.append(endpoint.id)
        del group.former[:-_MAX_FORMER]

    def _check_wanted(self, group: LocalGroup) -> None:
        """Raise LaunchError if the group is closed, its owner has ended, or the node is shutting down."""
        if group.closed is not None or group.owner in self._gone or self.closing:
            raise LaunchError(f"group '{group.name}' was closed while its workers were started")

    def _store_for(self, group: LocalGroup) -> socket.socket | None:
        """Return the store's socket for rank 0; a supervised group keeps a duplicate to hold the port."""
        store = group.store
        if group.supervised and store is not None:
            return store.dup()
        group.store = None
        return store

    def _profiled(self, profiler: Any, place: WorkerEnv, spec: dict[str, Any]) -> ProfiledStarter | None:
        if profiler is None:
            return None
        python = place.python or self._templates.python
        templates = self._templates
        return ProfiledStarter(profiler, spec["env"], python, templates.flags, self._site, templates.open_files)

    async def _undo(self, group: LocalGroup, endpoint: Endpoint) -> None:
        """End a worker of a failed launch; return once it has been reaped."""
        assert endpoint.process is not None
        if endpoint.exit_report is not None:
            self._forget(endpoint.id)  # its channels were kept for the group until now
        endpoint.process.closing = True
        endpoint.process.kill()
        await asyncio.shield(endpoint.process.ended)
        self._router.endpoints.pop(endpoint.number, None)
        self._sub_workers.forget(endpoint)
        if endpoint in group.workers:
            group.workers.remove(endpoint)

    async def _start_worker(
        self, group: LocalGroup, template: ForkServer, place: WorkerEnv, op: operations.Spawn, worker: dict[str, Any]
    ) -> Endpoint:
        site = self._site
        environment = place.variables(await self._probes.rendering(worker["env"], place.variables(worker["env"])))
        # The template's import may have taken a long time. If the group was closed in the meantime, a worker started
        # now would take the store of the next group with the same name.
        self._check_wanted(group)
        threads = self._threads(op, worker["env"], environment)
        environment = self._shared_variables(environment, threads)
        endpoint = self._router.new_endpoint("worker")
        token = f"{site.run[:8]:0>8}{endpoint.id & 0xFFFFFFFF:08x}"
        environment[MARKER] = token
        spec = {
            "env": environment,
            "token": token,
            "cwd": self._site.local_path(op.cwd),
            "sys_path": [*place.paths, *(self._site.local_path(entry) for entry in op.sys_path)],
            "script": self._site.local_path(op.script) if op.script else None,
            "module": op.module,
            "seed": None if op.seed is None else op.seed + worker["rank"],
            "threads": threads,
            "max_concurrency": op.max_concurrency,
            "direct_sockets": self._router.grant_direct_sockets(endpoint),
            "info": {**worker["info"], "node_name": site.name},
            "world_size": op.world_size,
            "group": group.name,
            "config": op.config,
            "script_env": op.script_env,
        }
        on_lines = None
        if not op.quiet and site.tee != "none" and _teed(site.tee, worker["rank"]):
            prefix = f"{group.name}:{worker['rank']}@{site.name}"

            def on_lines(stream: str, lines: list[str]) -> None:
                facts = {"who": prefix, "stream": stream, "lines": lines, "log": process.log_of(stream)}
                self._router.send_event(group.owner, "output", facts)

        setup = WorkerSetup(group.name, worker["rank"], worker["address"], spec, None, on_lines)
        process = self._new_process(self._loop, setup, site.name, site.log_dir)
        endpoint.process = process
        try:
            nursery = self._profiled(worker.get("profiler"), place, spec) or template
            if worker["rank"] == 0:
                setup.store = self._store_for(group)
            sock = await process.start(nursery, lambda: self._on_died(endpoint))
        except BaseException:
            self._router.endpoints.pop(endpoint.number, None)
            raise
        try:
            self._check_wanted(group)
        except LaunchError:
            sock.close()
            await self._undo(group, endpoint)
            raise
        endpoint.connection = Connection(
            sock,
            self._loop,
            on_frame=lambda frame, fds: self._router.from_endpoint(endpoint, frame, fds),
            # The pidfd reports the death, because a child of the process may keep the socket open.
            on_closed=lambda reason: None,
        )
        self._greet(endpoint)
        endpoint.connection.open()
        group.workers.append(endpoint)
        return endpoint

    async def close(self, requester: Requester, op: operations.CloseGroup) -> None:
        """End a group's workers on this node, letting them finish for ``grace`` seconds."""
        group = self.by_number.get(op.number)
        if group is not None and group.owner == requester.endpoint:
            await self.close_group(group, op.grace)

    async def close_group(self, group: LocalGroup, grace: float) -> None:
        """End a group; return once its workers and their leftover processes have ended."""
        if group.closed is not None:
            await asyncio.shield(group.closed)
            return
        group.closed = self._loop.create_future()
        try:
            _close_store_of(group)
            for endpoint in group.former:
                group.past.append(endpoint.id)
                self._router.replaced.pop(endpoint.number, None)
            for past in group.past:
                self._forget(past)
            processes = []
            me = frames.endpoint(self._site.node, 0)
            for endpoint in group.workers:
                assert endpoint.process is not None
                if endpoint.exit_report is not None:
                    self._forget(endpoint.id)  # its channels were kept for the group until now
                endpoint.process.closing = True
                endpoint.send((frames.STOP, 0, me, max(0.0, grace)))
                processes.append(endpoint.process)
            await _end(processes, grace)
            for endpoint in group.workers:
                self._router.endpoints.pop(endpoint.number, None)
                self._sub_workers.forget(endpoint)
        finally:
            self.by_number.pop(group.number, None)
            group.closed.set_result(None)

    def owners(self) -> set[int]:
        return {group.owner for group in self.by_number.values()}

    def drop(self, owner: int) -> None:
        for group in [group for group in self.by_number.values() if group.owner == owner]:
            self._abandon(group)

    def close_stores(self) -> None:
        for group in self.by_number.values():
            _close_store_of(group)


def _close_store_of(group: LocalGroup) -> None:
    if group.store is not None:
        group.store.close()
        group.store = None


async def _end(processes: Sequence[WorkerProcess], grace: float) -> None:
    """Wait for workers to exit; kill stopped ones after the grace for calls, all others after the full grace."""
    waits = (seconds_for_calls(grace), seconds_until_kill(grace) - seconds_for_calls(grace), None)
    for number, timeout in enumerate(waits):
        waiting = [process.ended for process in processes if not process.ended.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=timeout)
        for process in processes:
            if process.exit_status is None and (number or is_stopped(process.pid)):
                if grace:
                    state = state_of(process.pid, None) or "not done"
                    logger.warning("worker %s is killed: its group is closed, and it is %s", process.setup.name, state)
                process.kill()


def _first_number(text: str | None) -> int | None:
    """Return the first number of a list such as OpenMP's ``"4,2"``; None if it does not start with a number."""
    try:
        return max(1, int((text or "").split(",")[0]))
    except ValueError:
        return None


def _teed(tee: str, rank: int) -> bool:
    return tee in ("all", "") or str(rank) in tee.split(",")
