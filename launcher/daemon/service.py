"""``DaemonService``: registers the daemon's handlers; spawns, closes worker groups; frees what dead processes own.

It also opens the listening sockets of groups' stores, keeps the errors that the script has not observed for the
launcher, and answers ``NodeStatus``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlinf_async._core import clock, frames, operations
from rlinf_async._core.closing import seconds_for_calls, seconds_until_kill
from rlinf_async._core.descriptors import explained_shortage
from rlinf_async._core.ended_endpoints import EndedEndpoints
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.taken_page import TakenPage
from rlinf_async._recorder.recording import journal_in
from rlinf_async._wire.unix import Connection
from rlinf_async.errors import AuthError, LaunchError

from .activity import Activity
from .black_box import BlackBox
from .call_check import CallCheck
from .channels import Channels
from .cleanup import run_all
from .death_watch import DeathWatch
from .debug_relay import DebugRelay
from .device_locks import Locks
from .endpoint import Endpoint
from .experiences import Experiences
from .fork_server import MARKER, ForkServer
from .handlers import Handlers, Requester
from .inspection import Inspection
from .membership import Membership
from .name_service import Names
from .node_metrics import NodeMetrics
from .operator_requests import OperatorRequests
from .ports import Ports
from .preloads import Refusal, Wanted, wanted_by
from .probes import Probes
from .process_state import is_stopped, state_of
from .profiled_worker import ProfiledStarter
from .resources import count_memory
from .router import Router
from .run_metrics import RunMetrics
from .shared_links import SharedLinkService
from .stuck_ranks import StuckRanks
from .sub_workers import SubWorkers
from .templates import Templates
from .trace_service import Traces
from .worker_env import WorkerEnv, prepare
from .worker_process import DESCRIPTORS_PER_WORKER, WorkerProcess, WorkerSetup

logger = own_logger(__name__)

_MAX_FORMER: Final = 64
"""Workers of a group that have died and are replaced, and whose ends are still told."""

_RETURN_ANSWER_S: Final = 2.0
"""For other nodes to hear that a rank is back, or will not be."""

_MAX_UNOBSERVED_ERRORS: Final = 1000
"""Errors that a daemon keeps for the launcher: one is enough for the exit code, and people read the first ones."""


NewProcess = Callable[[asyncio.AbstractEventLoop, WorkerSetup, str, Path], WorkerProcess]
"""Makes a worker process of this node, which is not started yet."""


@dataclass
class Group:
    """The part of a worker group that lives on this node.

    Attributes:
        number: that of its name: another group of that name has another one.
        supervised: its owner starts workers again that have died.
        close_grace: seconds that its workers have for their end, where the owner does not say.
        former: workers that have died, and in whose place others are.
        past: endpoints of those that have died longest ago, which own channels of the group maybe.
        spawning: requests that start workers of it now.
        store: the socket of the store at MASTER_PORT, for the next one of rank 0.
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
    """Constants of a node: names, address, log directory, environment of workers."""

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


class DaemonService:
    """Handlers for the control requests that the processes of a run make to one daemon.

    Attributes:
        welcome: what every process of this node is told of the run when it attaches.
        lost: the nodes that are lost, as they were told to those who were attached then.
        closing: this node ends; no worker is started any more.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        site: Site,
        templates: Templates,
        router: Router,
        abandon: Callable[[Group], None],
        new_process: NewProcess = WorkerProcess,
    ) -> None:
        """``abandon`` closes a group whose owner is gone."""
        self._loop = loop
        self._new_process = new_process
        self._site = site
        self._templates = templates
        self._abandon = abandon
        self.router = router
        self.welcome: dict[str, Any] = {}
        self.lost: list[dict[str, Any]] = []
        self.closing = False
        self.groups: dict[int, Group] = {}
        self._pages: dict[int, TakenPage] = {}
        self.gone = EndedEndpoints()
        self.handlers = Handlers(router, self.gone)
        answer = self.handlers.answer
        self.channels = Channels(loop, router, self.gone, count_memory() // 2)
        self.experiences = Experiences(loop, router, self.channels, self.gone, count_memory() // 2)
        self.death_watch = DeathWatch(router)
        self.names = Names(answer, self.gone, self.lost)
        self.locks = Locks(answer)
        self.ports = Ports(site.address, site.ports)
        self.sub_workers = SubWorkers(router, site.name)
        self.probes = Probes(site.name, site.environment, self._here)
        self.shared_links = SharedLinkService()
        self.stuck_ranks = StuckRanks(router)
        self.membership = Membership(router)
        self.call_check = CallCheck(loop, router)
        self.traces = Traces(router, site.name, site.run, site.log_dir, lambda: self.welcome, answer, self.gone)
        self.debugging = DebugRelay(router, self.gone)
        self.activity = Activity(router, templates, self.names, self.channels, self.locks, self.debugging.stopped)
        self.inspection = Inspection(loop, router, site.name, self.channels, self.gone, self.debugging.stopped)
        self.black_box = BlackBox(site.log_dir, site.run, site.node)
        self.operators = OperatorRequests(router, self.probes, templates, site.name, site.log_dir)
        self.run_metrics = RunMetrics(router, site.name, lambda: self.welcome)
        self.node_metrics = NodeMetrics(router, self.channels, self.death_watch, self.probes, site.log_dir)
        self.unobserved: dict[tuple[int, str], str] = {}
        """Errors that the script has not awaited; the launcher is told of those that are left at the end."""
        self._register()

    def _register(self) -> None:
        on = self.handlers.register
        on(operations.Reserve, self.names.reserve)
        on(operations.Publish, self.names.publish)
        on(operations.Find, self.names.find)
        on(operations.CancelFind, self.names.cancel_find)
        on(operations.Release, self.names.release)
        on(operations.JoinGroup, self.names.join_group)
        on(operations.RankReturned, self.rank_returned)
        on(operations.IsAlive, self.names.is_alive)
        on(operations.ComesBack, self.names.comes_back)
        on(operations.QueueEnded, self.names.queue_ended)
        on(operations.PinKey, self.names.pin_key)
        on(operations.HostChannel, self.channels.host_channel)
        on(operations.CloseChannel, self.channels.close_channel)
        on(operations.CountItems, self.channels.count_items)
        on(operations.HostExperience, self.experiences.host_experience)
        on(operations.SetVersion, self.experiences.set_version)
        on(operations.Published, self.experiences.published)
        on(operations.FollowPublications, self.experiences.follow_publications)
        on(operations.SettleGroups, self.experiences.settle_groups)
        on(operations.CountSamples, self.experiences.count_samples)
        on(operations.CountEarlier, self.experiences.count_earlier)
        on(operations.HowEnded, self.death_watch.how_ended)
        on(operations.OpenStore, self.open_store)
        on(operations.Spawn, self.spawn)
        on(operations.CloseGroup, self.close)
        on(operations.Watch, self.death_watch.watch)
        on(operations.WatchedBy, self.death_watch.watched_by)
        on(operations.CallsChecked, self.call_check.calls_checked)
        on(operations.OwesCall, self.stuck_ranks.owes_call)
        on(operations.KillStuck, self.stuck_ranks.kill_stuck)
        on(operations.FindStopped, self.stuck_ranks.find_stopped)
        on(operations.FreePort, self.ports.free_port)
        on(operations.LeasePort, self.ports.lease_port)
        on(operations.LockDevices, self.locks.lock_devices)
        on(operations.UnlockDevices, self.locks.unlock_devices)
        on(operations.ReserveLines, self.shared_links.reserve_lines)
        on(operations.Inventory, self.probes.inventory)
        on(operations.ReportLink, self.membership.report_link)
        on(operations.AnswerNode, self.membership.answer_node)
        on(operations.NodeIsLost, self.membership.node_is_lost)
        on(operations.SetLease, self.membership.set_lease)
        on(operations.NodeStatus, self.node_status)
        on(operations.WorkerActivity, self.activity.worker_activity)
        on(operations.RequestProgress, self.activity.request_progress)
        on(operations.QueueState, self.activity.queue_state)
        on(operations.Inspect, self.inspection.inspect)
        on(operations.Inspected, self.inspection.inspected)
        on(operations.NodeDetails, self.operators.node_details)
        on(operations.KillRanks, self.operators.kill_ranks)
        on(operations.RestartRanks, self.restart_ranks)
        on(operations.DebugRank, self.debugging.debug_rank)
        on(operations.DebugSaid, self.debugging.debug_said)
        on(operations.RankStopped, self.debugging.rank_stopped)
        on(operations.ListRunFiles, self.operators.list_run_files)
        on(operations.ReadRunFile, self.operators.read_run_file)
        on(operations.ServeMetrics, self.run_metrics.serve_metrics)
        on(operations.NodeMetrics, self.node_metrics.node_metrics)
        on(operations.ReportError, self.report_error)
        on(operations.WithdrawError, self.withdraw_error)
        on(operations.OpenTrace, self.traces.open_trace)
        on(operations.StartTrace, self.traces.start_trace)
        on(operations.WriteSpans, self.traces.write_spans)
        on(operations.FlushSpans, self.traces.flush_spans)
        on(operations.ReadClock, self.traces.read_clock)
        on(operations.CollectSpans, self.traces.collect_spans)
        on(operations.SpansCollected, self.traces.spans_collected)
        on(operations.AwaitSpans, self.traces.await_spans)
        on(operations.ForgetSpans, self.traces.forget_spans)

    def greet(self, endpoint: Endpoint, parent: dict[str, Any] | None = None) -> None:
        """The first that a process hears; a subprocess of a worker also hears of that."""
        facts = {"endpoint": endpoint.id, "node": self._site.node, **self.welcome, "lost": self.lost, "parent": parent}
        facts["in_debugger"] = list(self.debugging.stopped)
        page, fds = TakenPage.make()
        if page is not None:
            self._pages[endpoint.id] = page
        endpoint.send((frames.HELLO, len(fds), frames.endpoint(self._site.node, 0), facts), fds)

    # -- groups -------------------------------------------------------------------------------------------------

    async def open_store(self, requester: Requester, op: operations.OpenStore) -> int:
        """A listening socket on this node's own address for the group's first rank; its port."""
        group = self._group_of(requester.endpoint, op)
        with explained_shortage(self._site.name, f"the store of group '{op.group}'", 1):
            listener = self.ports.listen(f"the store of group '{op.group}'")
        _close_store_of(group)
        group.store = listener
        return int(listener.getsockname()[1])

    async def spawn(self, requester: Requester, op: operations.Spawn) -> list[list[Any]]:
        """Starts workers on this node; ``[number, pid, log path]`` of each, in the order of the request."""
        count = len(op.workers)
        what = f"{count} worker{'s' * (count != 1)} of group '{op.group}'"
        with explained_shortage(self._site.name, what, count * DESCRIPTORS_PER_WORKER):
            started = await self._spawn(requester.endpoint, op)
        self.black_box.launched(op, started)
        return started

    async def _spawn(self, owner: int, op: operations.Spawn) -> list[list[Any]]:
        group = self._group_of(owner, op)
        group.supervised, group.close_grace = op.supervised, op.close_grace
        group.spawning += 1
        try:
            for earlier in [each for each in self.groups.values() if (each.name, each.owner) == (group.name, owner)]:
                if earlier.closed is not None and earlier is not group:
                    await asyncio.shield(earlier.closed)  # its workers have what those of this one will need
            return await self._spawn_in(group, op)
        finally:
            group.spawning -= 1
            # Another request may be starting workers of this group, which nobody would find in order to end them; the
            # group of ranks that are away has their channels, and the store.
            # tests/launcher/daemon/test_group_spawns.py::test_a_spawn_that_fails_leaves_what_others_have_in_the_group
            if not (group.spawning or group.workers or group.former) and group.closed is None:
                self.groups.pop(group.number, None)
                _close_store_of(group)

    def _group_of(self, owner: int, op: operations.OpenStore | operations.Spawn) -> Group:
        """Return the group that a request is for; the first request makes it."""
        group = self.groups.setdefault(op.number, Group(op.number, op.group, owner))
        if group.owner != owner:
            raise LaunchError(f"group '{group.name}' (number {op.number}) is another process's, and not '{op.group}'")
        return group

    async def _spawn_in(self, group: Group, op: operations.Spawn) -> list[list[Any]]:
        name, owner = group.name, group.owner
        self._check_wanted(group)  # or a node that ends would start a template, and wait for its imports
        self._replace_dead(group, [worker["rank"] for worker in op.workers])
        place = prepare(self._site.environment, op.env, op.node_env, op.python, self._site.name, op.script_env)
        plain = self._templates.get({**place.own, **place.special}, place.python)
        wanted = self._wanted_modules(op, place)

        def on_refused(refusal: Refusal) -> None:
            facts = {"group": name, "node": self._site.name, "module": refusal.module, "reason": refusal.reason}
            logger.info("module %(module)s is not preloaded for group '%(group)s': %(reason)s", facts)
            self.router.tell(owner, "not_preloaded", facts | {"asked": refusal.module in wanted.asked})

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

    def _wanted_modules(self, op: operations.Spawn, place: WorkerEnv) -> Wanted:
        shared = place.variables({})
        threads = self._threads(op, op.workers[0]["env"] if op.workers else {}, shared)
        variables = self._shared_variables(shared, threads)
        python = place.python or self._templates.python
        return wanted_by(op, self._site.name, python, variables, place.paths, self._here)

    def _threads(self, op: operations.Spawn, own: Mapping[str, str], environment: Mapping[str, str]) -> int:
        there = max(len(op.workers), _first_number(own.get("NODE_LOCAL_WORLD_SIZE")) or 1)
        return _first_number(environment.get("OMP_NUM_THREADS")) or max(1, self._site.cpus // there)

    def _shared_variables(self, environment: Mapping[str, str], threads: int) -> dict[str, str]:
        """An environment with the variables that the node adds."""
        node = {"RLINF_RUN_ID": self._site.run, "RLINF_NODE_RANK": str(self._site.node)}
        return {"OMP_NUM_THREADS": str(threads), **environment, **node}

    def _replace_dead(self, group: Group, ranks: Sequence[int]) -> None:
        """Workers of these ranks that have died make room; their channels live on with the group."""
        for endpoint in group.workers.copy():
            assert endpoint.process is not None
            if endpoint.exit_report is not None and endpoint.process.setup.rank in ranks:
                group.workers.remove(endpoint)
                group.former.append(endpoint)
                self.router.endpoints.pop(endpoint.number, None)
                self.router.replaced[endpoint.number] = endpoint
                self.sub_workers.forget(endpoint)
        for endpoint in group.former[:-_MAX_FORMER]:
            self.router.replaced.pop(endpoint.number, None)
            group.past.append(endpoint.id)
        del group.former[:-_MAX_FORMER]

    async def rank_returned(self, requester: Requester, op: operations.RankReturned) -> None:
        """Tells every process of the run that a rank is back, or will not be.

        The owner tells node 0, which tells those who look for the rank, and the processes of all nodes.

        Raises:
            KeyError: the requester does not own the group.
            AuthError: this is not node 0, and the requester is not node 0's daemon.
        """
        if self._site.node == 0:
            self.names.rank_returned(requester, op)
            there = [neighbour.node for neighbour in self.router.neighbours.values() if neighbour.over is None]
            for node in there:
                # A request is a task there. A call of the owner behind it, as that of a hook, would overtake it, and
                # its rank would send to the process that has died. An owner on another node calls by other links.
                # tests/simulation/test_sim_restarts.py::test_a_hook_sends_to_the_incarnation_that_is_back
                self.router.tell(frames.endpoint(node, 0), "rank_returned", vars(op))
            if not frames.node_of(requester.endpoint):
                for node in there:
                    if node != frames.node_of(op.was):
                        self.router.request(node, op)  # for its experiences, and nobody waits for that
                there = [node for node in there if node == frames.node_of(op.was)]
            with contextlib.suppress(TimeoutError):  # a node is away
                async with asyncio.timeout(_RETURN_ANSWER_S):
                    await asyncio.gather(*(self.router.ask(node, op) for node in there), return_exceptions=True)
        elif requester.endpoint != frames.endpoint(0, 0):
            raise AuthError(f"{op.group}: a process of this node tells of a rank's return: its group's owner does that")
        endpoint = self.router.endpoints.get(frames.number_of(op.was))
        if op.entry is None and endpoint is not None and endpoint.id == op.was and endpoint.exit_report is not None:
            report = {**frames.unpack(endpoint.exit_report), "returns": False, "reason": op.report["reason"]}
            endpoint.exit_report = frames.pack(report)
        self.experiences.note_return(op)
        if self._site.node == 0:
            self.router.tell_all("rank_returned", vars(op))

    async def restart_ranks(self, requester: Requester, op: operations.RestartRanks) -> list[int]:
        """Ends workers with these numbers, whose owners start them again and count it against no limit.

        Raises:
            LaunchError: one of them is of a group that is not supervised; none was ended.
        """
        found = [(group, each) for group in self.groups.values() for each in group.workers if each.number in op.numbers]
        for group, _ in found:
            if not group.supervised:
                text = "was launched without restart=, so that nothing of what its constructors had is kept"
                raise LaunchError(f"group '{group.name}' {text}\n  fix: launch(..., restart='rank')")
        for group, worker in found:
            self.router.tell(group.owner, "restart_wanted", {"endpoint": worker.id})
        kill = operations.KillRanks(op.numbers, "was restarted by an operator (rlinf-ctl restart)")
        return await self.operators.kill_ranks(requester, kill)

    async def _undo(self, group: Group, endpoint: Endpoint) -> None:
        """Ends a worker whose group does not come to be; returns once it is reaped."""
        assert endpoint.process is not None
        if endpoint.exit_report is not None:
            self.forget_endpoint(endpoint.id)  # it died by itself: its channels were to live on with the group
        endpoint.process.closing = True
        endpoint.process.kill()
        await asyncio.shield(endpoint.process.ended)
        self.router.endpoints.pop(endpoint.number, None)
        self.sub_workers.forget(endpoint)
        if endpoint in group.workers:
            group.workers.remove(endpoint)

    async def _start_worker(
        self, group: Group, template: ForkServer, place: WorkerEnv, op: operations.Spawn, worker: dict[str, Any]
    ) -> Endpoint:
        site = self._site
        environment = place.variables(await self.probes.rendering(worker["env"], place.variables(worker["env"])))
        # The template may have been imported for long.  A worker of a group that was closed meanwhile would take the
        # store of the next group of that name.
        self._check_wanted(group)
        threads = self._threads(op, worker["env"], environment)
        environment = self._shared_variables(environment, threads)
        endpoint = self.router.new_endpoint("worker")
        token = f"{site.run[:8]:0>8}{endpoint.id & 0xFFFFFFFF:08x}"
        environment[MARKER] = token
        spec = {
            "env": environment,
            "token": token,
            "cwd": self._here(op.cwd),
            "sys_path": [*place.paths, *(self._here(entry) for entry in op.sys_path)],
            "script": self._here(op.script) if op.script else None,
            "module": op.module,
            "seed": None if op.seed is None else op.seed + worker["rank"],
            "threads": threads,
            "max_concurrency": op.max_concurrency,
            "direct_sockets": self.router.grant_direct_sockets(endpoint),
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
                self.router.tell(group.owner, "output", facts)

        setup = WorkerSetup(group.name, worker["rank"], worker["address"], spec, None, on_lines)
        process = self._new_process(self._loop, setup, site.name, site.log_dir)
        endpoint.process = process
        try:
            nursery = self._profiled(worker.get("profiler"), place, spec) or template
            if worker["rank"] == 0:
                setup.store = self._store_for(group)
            sock = await process.start(nursery, lambda: self._died(endpoint))
        except BaseException:
            self.router.endpoints.pop(endpoint.number, None)
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
            on_frame=lambda frame, fds: self.router.from_endpoint(endpoint, frame, fds),
            on_closed=lambda reason: None,  # its pidfd tells of its death; end-of-file proves nothing
        )
        self.greet(endpoint)
        endpoint.connection.open()
        group.workers.append(endpoint)
        return endpoint

    def _check_wanted(self, group: Group) -> None:
        """Raises:
        LaunchError: nobody waits for the group's workers any more.
        """
        if group.closed is not None or group.owner in self.gone or self.closing:
            raise LaunchError(f"group '{group.name}' was closed while its workers were started")

    def _store_for(self, group: Group) -> socket.socket | None:
        """The listening socket for rank 0; of a supervised group one stays here, so that the port stays the group's."""
        store = group.store
        if group.supervised and store is not None:
            return store.dup()
        group.store = None
        return store

    def _profiled(self, profiler: Any, place: WorkerEnv, spec: dict[str, Any]) -> ProfiledStarter | None:
        """What starts a worker that a profiler is wrapped around; None where there is none."""
        if profiler is None:
            return None
        python = place.python or self._templates.python
        templates = self._templates
        return ProfiledStarter(profiler, spec["env"], python, templates.flags, self._site, templates.open_files)

    def _here(self, path: str) -> str:
        """A path of the driver's machine, as it is called on this one (``--sync``)."""
        if self._site.sync is None:
            return path
        near, far = self._site.sync
        if path == near or path.startswith(near.rstrip("/") + "/"):
            return far + path[len(near.rstrip("/")) :]
        return path

    def _died(self, endpoint: Endpoint) -> None:
        process = endpoint.process
        assert process is not None
        if endpoint.connection is not None:
            endpoint.connection.drain()
        group = next((group for group in self.groups.values() if endpoint in group.workers), None)
        if process.closing:
            self._report_exit(endpoint, group, expected=True)
        else:
            # Whether its group is closed meanwhile makes no difference to how it has ended.
            self.call_check.begin([endpoint], lambda: self._report_exit(endpoint, group, expected=False))

    def _report_exit(self, endpoint: Endpoint, group: Group | None, *, expected: bool) -> None:
        process = endpoint.process
        assert process is not None
        report = process.exit_report(endpoint.pending_calls.methods(clock.monotonic()))
        report["returns"] = not expected and group is not None and group.supervised and group.closed is None
        if not expected:
            logger.warning("worker %s (pid %d) %s", process.setup.name, process.pid, report["verdict"])
        if not expected:
            endpoint.journal = journal_in(self._site.log_dir, endpoint.id, self._site.run)
        parts = [
            lambda: self.router.fail_pending_calls(endpoint, report, expected=expected),
            lambda: self.death_watch.ended(endpoint.id, None if expected else report),
            lambda: self.forget_endpoint(endpoint.id, ended=process.closing),
        ]
        if not expected:
            parts.append(lambda: self._note_death(process.setup.name, report))
        if group is not None and not expected:
            # Where it comes back, before its calls fail: one that is made because of that waits for it.
            place = 0 if report["returns"] else len(parts)
            parts.insert(place, lambda: self.router.tell(group.owner, "died", {**report, "endpoint": endpoint.id}))
        run_all(f"worker {process.setup.name}", parts)

    def _note_death(self, name: str, report: Mapping[str, Any]) -> None:
        self.black_box.death(name, report["pid"], report["verdict"], report["last_words"])

    async def close(self, requester: Requester, op: operations.CloseGroup) -> None:
        """Ends the workers of a group on this node, in order if they can within ``grace`` seconds."""
        group = self.groups.get(op.number)
        if group is not None and group.owner == requester.endpoint:
            await self.close_group(group, op.grace)

    async def close_group(self, group: Group, grace: float) -> None:
        """Returns once every worker of the group, and what it left behind, is gone."""
        if group.closed is not None:
            await asyncio.shield(group.closed)
            return
        group.closed = self._loop.create_future()
        try:
            _close_store_of(group)
            for endpoint in group.former:
                group.past.append(endpoint.id)
                self.router.replaced.pop(endpoint.number, None)
            for past in group.past:
                self.forget_endpoint(past)
            processes = []
            me = frames.endpoint(self._site.node, 0)
            for endpoint in group.workers:
                assert endpoint.process is not None
                if endpoint.exit_report is not None:
                    self.forget_endpoint(endpoint.id)  # its channels have lived on with the group
                endpoint.process.closing = True
                endpoint.send((frames.STOP, 0, me, max(0.0, grace)))
                processes.append(endpoint.process)
            await _end(processes, grace)
            for endpoint in group.workers:
                self.router.endpoints.pop(endpoint.number, None)
                self.sub_workers.forget(endpoint)
        finally:
            self.groups.pop(group.number, None)
            group.closed.set_result(None)

    # -- those who are gone -------------------------------------------------------------------------------------

    def end_sub_worker(self, endpoint: Endpoint) -> None:
        """A subprocess of a worker has ended."""
        report = self.sub_workers.end(endpoint)
        if report is not None:
            logger.warning("worker %s (pid %d) %s", endpoint.name, endpoint.pid, report["verdict"])
            self._note_death(endpoint.name, report)
        parts = (lambda: self.death_watch.ended(endpoint.id, report), lambda: self.forget_endpoint(endpoint.id))
        run_all(f"worker {endpoint.name}", parts)

    def forget_endpoint(self, gone: int, *, ended: bool = True) -> None:
        """An endpoint of this node is no more: here and elsewhere nobody need do anything for it.

        Args:
            ended: what it shared with its group, its channels, ends too.
        """
        frame = (frames.GONE, 0, frames.endpoint(self._site.node, 0), gone, ended)
        parts = (
            lambda: self._say_taken(gone),  # first: what it had not taken goes back
            lambda: self.router.broadcast(frame),
            lambda: self.drop_owner(gone, ended=ended),
        )
        run_all(f"endpoint {gone}", parts)

    def _say_taken(self, gone: int) -> None:
        """Tells queues, in the place of a process that is no more, what it has taken and not said."""
        page = self._pages.pop(gone, None)
        if page is not None:
            for (place, channel), taken in page.read().items():
                self.router.to_queue([frames.QUEUE, 0, gone, place, channel, "taken", taken], [])

    def drop_owner(self, gone: int, *, ended: bool = True) -> None:
        """Frees what an endpoint (of any node) owned: its calls, its names and lookups, its stores, its groups."""
        self.gone.add(gone)
        parts: list[Callable[[int], None]] = [
            self.channels.drop_client, self.names.drop_client, self.death_watch.forget, self.locks.drop,
            self.ports.drop, self.traces.drop, self.inspection.drop, self.debugging.drop,
            *((self.channels.drop_owner, self.names.drop_owner, self.experiences.drop_owner) if ended else ()),
            self.router.drop_caller, self._abandon_groups, self.experiences.drop_client,
        ]  # fmt: skip
        run_all(f"endpoint {gone}", (functools.partial(part, gone) for part in parts))

    def _abandon_groups(self, owner: int) -> None:
        for group in [group for group in self.groups.values() if group.owner == owner]:
            self._abandon(group)

    def drop_node(self, node: int) -> None:
        """Frees what the endpoints of a lost node owned here, and does nothing more for any of them."""
        # A request that came before is a task of its own, which begins after this, maybe.
        self.gone.add_all(frames.endpoint(node, 0), frames.endpoint(node + 1, 0) - 1)
        owners = self.names.clients() | {group.owner for group in self.groups.values()}
        owners |= self.router.callers_on(node) | self.channels.clients_and_owners()
        owners |= self.locks.holders() | self.ports.owners()
        for owner in owners:
            if frames.node_of(owner) == node:
                self.drop_owner(owner)
        parts = (self.names.lose_node, self.debugging.drop_node, self.experiences.drop_node)
        run_all(f"node {node}", (*(functools.partial(part, node) for part in parts), self.traces.look_again))

    # -- errors that the script has not got -------------------------------------------------------------------------

    async def report_error(self, requester: Requester, op: operations.ReportError) -> None:
        if len(self.unobserved) < _MAX_UNOBSERVED_ERRORS:
            self.unobserved[requester.endpoint, op.key] = op.text

    async def withdraw_error(self, requester: Requester, op: operations.WithdrawError) -> None:
        self.unobserved.pop((requester.endpoint, op.key), None)

    # -- questions ----------------------------------------------------------------------------------------------

    async def node_status(self, requester: Requester, op: operations.NodeStatus) -> dict[str, Any]:
        """What this daemon has: for people and for tests."""
        checked = asyncio.Event()
        self.call_check.begin(self.router.endpoints.values(), checked.set)
        await checked.wait()
        now = clock.monotonic()
        return {
            "node": self._site.node,
            "pid": os.getpid(),
            "groups": {
                group.name: len(group.workers) for group in self.groups.values() if group.owner not in self.gone
            },
            "endpoints": len(self.router.endpoints),
            "busy": {
                endpoint.process.setup.name: endpoint.pending_calls.methods(now)
                for endpoint in self.router.endpoints.values()
                if endpoint.process is not None and len(endpoint.pending_calls)
            },
            "names": self.names.groups.names(),
            "channels": self.channels.status(),
            "devices": self.locks.status(),
            "ports": self.ports.status(),
            "leases": {str(node): neighbour.lease for node, neighbour in self.router.neighbours.items()},
            "links_down": {
                str(node): neighbour.seconds_down
                for node, neighbour in self.router.neighbours.items()
                if neighbour.seconds_down
            },
            "calls_sent": {str(node): neighbour.calls_sent for node, neighbour in self.router.neighbours.items()},
        }

    def close_stores(self) -> None:
        for group in self.groups.values():
            _close_store_of(group)


def _close_store_of(group: Group) -> None:
    if group.store is not None:
        group.store.close()
        group.store = None


async def _end(processes: Sequence[WorkerProcess], grace: float) -> None:
    """Wait for the orderly ends of processes; kill one that is stopped when calls have had their time, others later."""
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
    """Of a list such as OpenMP's ``"4,2"``, a number per level; None where it does not begin with one."""
    try:
        return max(1, int((text or "").split(",")[0]))
    except ValueError:
        return None


def _teed(tee: str, rank: int) -> bool:
    return tee in ("all", "") or str(rank) in tee.split(",")
