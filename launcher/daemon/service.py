"""``DaemonService``: registers the daemon's handlers, and frees the state of dead processes.

It also collects errors that the script has not awaited, for the launcher, and answers ``NodeStatus``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from rlinf_async._core import clock, frames, operations
from rlinf_async._core.ended_endpoints import EndedEndpoints
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.taken_page import TakenPage
from rlinf_async._messaging.state.emulated_delay import SharedLink, SharedLinks
from rlinf_async._recorder.recording import journal_in
from rlinf_async.errors import AuthError, LaunchError

from .black_box import BlackBox
from .call_check import CallCheck
from .channels import Channels
from .cleanup import run_all
from .death_watch import DeathWatch
from .debug_relay import DebugRelay
from .device_locks import Locks
from .endpoint import Endpoint
from .experiences import Experiences
from .handlers import Handlers, Requester
from .inspection import Inspection
from .membership import Membership
from .name_service import NameService
from .node_metrics import NodeMetricsReader
from .operator_requests import OperatorRequests
from .ports import Ports
from .probes import Probes
from .process_state import is_stopped
from .resources import count_memory
from .router import Router
from .run_metrics import RunMetrics
from .sub_workers import SubWorkers
from .templates import Templates
from .trace_service import Traces
from .wait_descriptions import WaitDescriptions
from .worker_groups import LocalGroup, NewProcess, Site, WorkerGroups
from .worker_process import WorkerProcess

logger = own_logger(__name__)

_RETURN_ANSWER_S: Final = 2.0
"""Seconds to wait for other nodes to acknowledge that a rank has been restarted or will not be."""

_MAX_UNOBSERVED_ERRORS: Final = 1000
"""Limit on unobserved errors kept for the launcher: one decides the exit code, and users read only the first few."""


class SharedLinkService:
    """Bandwidth reservations on emulated network links shared by several nodes, kept on node 0."""

    def __init__(self) -> None:
        self._links = SharedLinks()

    async def reserve_lines(self, requester: Requester, op: operations.ReserveLines) -> float:
        """Return the seconds until these links, ``[name, bytes per second]``, will have carried ``op.nbytes``."""
        links = [SharedLink(str(name), float(rate)) for name, rate in op.lines]
        if any(link.rate <= 0 for link in links):
            raise ValueError(f"a link must carry more than nothing: {links}")
        return self._links.reserve(links, max(0, op.nbytes), clock.monotonic())


class StuckRanks:
    """Handlers for this node's ranks that are stuck in a collective because another rank failed."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def owes_call(self, requester: Requester, op: operations.OwesCall) -> bool:
        """True if the call, or one that the same source made after ``op.after``, is pending on the worker."""
        endpoint = self._router.endpoints.get(op.number)
        if endpoint is None or endpoint.exit_report is not None:
            return False
        calls = endpoint.pending_calls
        return calls.is_pending(op.source, op.call) or calls.has_later(op.source, op.after)

    async def kill_stuck(self, requester: Requester, op: operations.KillStuck) -> None:
        """Kill the requester, because its main thread cannot be freed or one of its background tasks has failed."""
        endpoint = self._router.endpoints.get(frames.number_of(requester.endpoint))
        if frames.node_of(requester.endpoint) != self._router.node or endpoint is None or endpoint.process is None:
            raise ValueError("only a worker of this node can ask for its end")
        endpoint.process.kill(op.verdict)

    async def find_stopped(self, requester: Requester, op: operations.FindStopped) -> list[int]:
        """Return the numbers of the workers stopped by SIGSTOP or a debugger."""
        workers = {number: self._router.endpoints.get(number) for number in op.numbers}
        return [
            number
            for number, worker in workers.items()
            if worker is not None and worker.process is not None and is_stopped(worker.process.pid)
        ]


class DaemonService:
    """Handlers for a daemon's control requests; ``abandon`` closes a group whose owner has ended.

    A process that attaches to this node receives ``welcome`` (facts about the run) and ``lost`` (about lost nodes).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        site: Site,
        templates: Templates,
        router: Router,
        abandon: Callable[[LocalGroup], None],
        new_process: NewProcess = WorkerProcess,
    ) -> None:
        self._site = site
        self.router = router
        self.welcome: dict[str, Any] = {}
        self.lost: list[dict[str, Any]] = []
        self._pages: dict[int, TakenPage] = {}
        self.gone = EndedEndpoints()
        self.handlers = Handlers(router, self.gone)
        answer = self.handlers.answer
        self.channels = Channels(loop, router, self.gone, count_memory() // 2)
        self.experiences = Experiences(loop, router, self.channels, self.gone, count_memory() // 2)
        self.death_watch = DeathWatch(router)
        self.names = NameService(answer, self.gone, self.lost)
        self.locks = Locks(answer)
        self.ports = Ports(site.address, site.ports)
        self.sub_workers = SubWorkers(router, site.name)
        self.probes = Probes(site.name, site.environment, site.local_path)
        self.shared_links = SharedLinkService()
        self.stuck_ranks = StuckRanks(router)
        self.membership = Membership(router)
        self.call_check = CallCheck(loop, router)
        self.traces = Traces(router, site.name, site.run, site.log_dir, lambda: self.welcome, self.gone)
        self.debugging = DebugRelay(router, self.gone)
        self.inspection = Inspection(loop, router, site.name, self.channels, self.gone, self.debugging.stopped)
        self.wait_descriptions = WaitDescriptions(
            router, templates, self.names, self.channels, self.locks, self.inspection.state_of
        )
        self.black_box = BlackBox(site.log_dir, site.run, site.node)
        self.operators = OperatorRequests(router, self.probes, templates, site.name, site.log_dir)
        self.run_metrics = RunMetrics(router, site.name, lambda: self.welcome)
        self.node_metrics = NodeMetricsReader(router, self.channels, self.death_watch, self.probes, site.log_dir)
        self.groups = WorkerGroups(
            loop, site, templates, router, self.gone,
            ports=self.ports, probes=self.probes, sub_workers=self.sub_workers, black_box=self.black_box,
            new_process=new_process, abandon=abandon, greet=self.greet, on_died=self._died,
            forget=self.forget_endpoint,
        )  # fmt: skip
        self.unobserved: dict[tuple[int, str], str] = {}
        """Maps endpoint and key to an error that the script has not awaited; the launcher reports these at the end."""
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
        on(operations.OpenStore, self.groups.open_store)
        on(operations.Spawn, self.groups.spawn)
        on(operations.CloseGroup, self.groups.close)
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
        on(operations.FindHardware, self.probes.inventory)
        on(operations.ReportLink, self.membership.report_link)
        on(operations.AnswerNode, self.membership.answer_node)
        on(operations.NodeIsLost, self.membership.node_is_lost)
        on(operations.SetLease, self.membership.set_lease)
        on(operations.NodeStatus, self.node_status)
        on(operations.RequestProgress, self.wait_descriptions.request_progress)
        on(operations.QueueState, self.wait_descriptions.queue_state)
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
        on(operations.ScrapeNode, self.node_metrics.node_metrics)
        on(operations.ReadStderr, self.read_stderr)
        on(operations.ReportError, self.report_error)
        on(operations.WithdrawError, self.withdraw_error)
        on(operations.OpenTrace, self.traces.open_trace)
        on(operations.StartTrace, self.traces.start_trace)
        on(operations.ReadClock, self.traces.read_clock)
        on(operations.WriteSpans, self.traces.write_spans)
        on(operations.CollectTrace, self.traces.collect_trace)

    def greet(self, endpoint: Endpoint, parent: dict[str, Any] | None = None) -> None:
        """Send the HELLO frame to a new process; ``parent`` describes the worker that started a subprocess."""
        facts = {"endpoint": endpoint.id, "node": self._site.node, **self.welcome, "lost": self.lost, "parent": parent}
        facts["in_debugger"] = list(self.debugging.stopped)
        page, fds = TakenPage.make()
        if page is not None:
            self._pages[endpoint.id] = page
        endpoint.send((frames.HELLO, len(fds), frames.endpoint(self._site.node, 0), facts), fds)

    # -- groups -------------------------------------------------------------------------------------------------

    async def restart_ranks(self, requester: Requester, op: operations.RestartRanks) -> list[int]:
        """Kill workers by number; their owners restart them, without counting against the restart limit.

        Raises:
            LaunchError: a worker's group is not supervised; no worker was killed.
        """
        groups = self.groups.by_number.values()
        found = [(group, each) for group in groups for each in group.workers if each.number in op.numbers]
        for group, _ in found:
            if not group.supervised:
                text = "was launched without restart=, so that nothing of what its constructors had is kept"
                raise LaunchError(f"group '{group.name}' {text}\n  fix: launch(..., restart='rank')")
        for group, worker in found:
            self.router.send_event(group.owner, "restart_wanted", {"endpoint": worker.id})
        kill = operations.KillRanks(op.numbers, "was restarted by an operator (rlinf-ctl restart)")
        return await self.operators.kill_ranks(requester, kill)

    async def rank_returned(self, requester: Requester, op: operations.RankReturned) -> None:
        """Announce to the whole run that a rank has been restarted or will not be.

        The owner informs node 0, which informs waiting lookups and all nodes' processes.

        Raises:
            KeyError: the requester does not own the group.
            AuthError: the requester is not node 0's daemon, and this is not node 0.
        """
        if self._site.node == 0:
            self.names.rank_returned(requester, op)
            nodes = [node_link.node for node_link in self.router.node_links.values() if node_link.over is None]
            for node in nodes:
                # The other daemon handles a request as a task. A call that the owner sends right after the request,
                # for example from a restart hook, would overtake it, and the rank would send to the dead process. So
                # nodes receive an event, which keeps its place in the stream. This does not help an owner on another
                # node, whose calls use other links, so its request is answered after all nodes have acknowledged.
                # tests/simulation/test_sim_restarts.py::test_a_hook_sends_to_the_incarnation_that_is_back
                self.router.send_event(frames.endpoint(node, 0), "rank_returned", vars(op))
            if not frames.node_of(requester.endpoint):
                for node in nodes:
                    if node != frames.node_of(op.was):
                        # Only the experiences on ``node`` need this request, so the owner does not wait for it.
                        self.router.request(node, op)
                nodes = [node for node in nodes if node == frames.node_of(op.was)]
            with contextlib.suppress(TimeoutError):  # a node may be temporarily unreachable
                async with asyncio.timeout(_RETURN_ANSWER_S):
                    await asyncio.gather(*(self.router.ask(node, op) for node in nodes), return_exceptions=True)
        elif requester.endpoint != frames.endpoint(0, 0):
            raise AuthError(f"{op.group}: a process of this node tells of a rank's return: its group's owner does that")
        endpoint = self.router.endpoints.get(frames.number_of(op.was))
        if op.entry is None and endpoint is not None and endpoint.id == op.was and endpoint.exit_report is not None:
            report = {**frames.unpack(endpoint.exit_report), "returns": False, "reason": op.report["reason"]}
            endpoint.exit_report = frames.pack(report)
        self.experiences.note_return(op)
        if self._site.node == 0:
            self.router.broadcast_event("rank_returned", vars(op))

    def _died(self, endpoint: Endpoint) -> None:
        process = endpoint.process
        assert process is not None
        if endpoint.connection is not None:
            endpoint.connection.drain()
        group = self.groups.group_of(endpoint)
        if process.closing:
            self._report_exit(endpoint, group, expected=True)
        else:
            # If the group is closed during the check, the death still counts as unexpected.
            self.call_check.begin([endpoint], lambda: self._report_exit(endpoint, group, expected=False))

    def _report_exit(self, endpoint: Endpoint, group: LocalGroup | None, *, expected: bool) -> None:
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
            # The owner of a supervised group learns of the death before the calls fail, so that a call made in response
            # to such a failure waits for the rank's restart.
            place = 0 if report["returns"] else len(parts)
            parts.insert(
                place, lambda: self.router.send_event(group.owner, "died", {**report, "endpoint": endpoint.id})
            )
        run_all(f"worker {process.setup.name}", parts)

    def _note_death(self, name: str, report: Mapping[str, Any]) -> None:
        self.black_box.death(name, report["pid"], report["verdict"], report["last_words"])

    # -- ended processes -------------------------------------------------------------------------------------

    def end_sub_worker(self, endpoint: Endpoint) -> None:
        report = self.sub_workers.end(endpoint)
        if report is not None:
            logger.warning("worker %s (pid %d) %s", endpoint.name, endpoint.pid, report["verdict"])
            self._note_death(endpoint.name, report)
        parts = (lambda: self.death_watch.ended(endpoint.id, report), lambda: self.forget_endpoint(endpoint.id))
        run_all(f"worker {endpoint.name}", parts)

    def forget_endpoint(self, gone: int, *, ended: bool = True) -> None:
        """Free a local endpoint's state on all nodes; state shared with its group is freed only if ``ended``."""
        frame = (frames.GONE, 0, frames.endpoint(self._site.node, 0), gone, ended)
        parts = (
            lambda: self._confirm_taken(gone),  # first, because the next steps return unconfirmed items to their queues
            lambda: self.router.broadcast(frame),
            lambda: self.drop_owner(gone, ended=ended),
        )
        run_all(f"endpoint {gone}", parts)

    def _confirm_taken(self, gone: int) -> None:
        """Confirm to queues the items that a dead process took without sending a confirmation."""
        page = self._pages.pop(gone, None)
        if page is not None:
            for (place, channel), taken in page.read().items():
                self.router.to_queue([frames.QUEUE, 0, gone, place, channel, "taken", taken], [])

    def drop_owner(self, gone: int, *, ended: bool = True) -> None:
        """Free what an endpoint on any node owned: calls, names, lookups, stores, groups."""
        self.gone.add(gone)
        parts: list[Callable[[int], None]] = [
            self.channels.drop_client, self.names.drop_client, self.death_watch.forget, self.locks.drop,
            self.ports.drop, self.inspection.drop, self.debugging.drop,
            *((self.channels.drop_owner, self.names.drop_owner, self.experiences.drop_owner) if ended else ()),
            self.router.drop_caller, self.groups.drop, self.experiences.drop_client,
        ]  # fmt: skip
        run_all(f"endpoint {gone}", (functools.partial(part, gone) for part in parts))

    def drop_node(self, node: int) -> None:
        """Free what a lost node's endpoints owned here; their later requests are refused."""
        # A request received earlier runs as a separate task, possibly after this call; in that case ``gone`` fails it.
        self.gone.add_all(frames.endpoint(node, 0), frames.endpoint(node + 1, 0) - 1)
        owners = self.names.clients() | self.groups.owners()
        owners |= self.router.callers_on(node) | self.channels.clients_and_owners()
        owners |= self.locks.holders() | self.ports.owners()
        for owner in owners:
            if frames.node_of(owner) == node:
                self.drop_owner(owner)
        parts = (self.names.lose_node, self.debugging.drop_node, self.experiences.drop_node)
        run_all(f"node {node}", (functools.partial(part, node) for part in parts))

    # -- errors not awaited by the script ------------------------------------------------------------------------

    async def read_stderr(self, requester: Requester, op: operations.ReadStderr) -> list[str]:
        process = self.router.endpoints[frames.number_of(requester.endpoint)].process
        return [] if process is None else process.stderr_tail()

    async def report_error(self, requester: Requester, op: operations.ReportError) -> None:
        if len(self.unobserved) < _MAX_UNOBSERVED_ERRORS:
            self.unobserved[requester.endpoint, op.key] = op.text

    async def withdraw_error(self, requester: Requester, op: operations.WithdrawError) -> None:
        self.unobserved.pop((requester.endpoint, op.key), None)

    # -- questions ----------------------------------------------------------------------------------------------

    async def node_status(self, requester: Requester, op: operations.NodeStatus) -> dict[str, Any]:
        checked = asyncio.Event()
        self.call_check.begin(self.router.endpoints.values(), checked.set)
        await checked.wait()
        now = clock.monotonic()
        return {
            "node": self._site.node,
            "pid": os.getpid(),
            "groups": {
                group.name: len(group.workers)
                for group in self.groups.by_number.values()
                if group.owner not in self.gone
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
            "leases": {str(node): node_link.lease for node, node_link in self.router.node_links.items()},
            "links_down": {
                str(node): node_link.seconds_down
                for node, node_link in self.router.node_links.items()
                if node_link.seconds_down
            },
            "calls_sent": {str(node): node_link.calls_sent for node, node_link in self.router.node_links.items()},
        }
