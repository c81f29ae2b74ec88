"""``Job``: a run as an async context manager; runs preflight, daemons and script, and shuts all nodes down."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from rlinf_async import settings
from rlinf_async._core import import_hook, surroundings
from rlinf_async._core.descriptors import limit_met
from rlinf_async._core.own_start import interpreter_flags
from rlinf_async._recorder.run_files import bundle_name, temporary_folder, usual_log_parent
from rlinf_async._wire.lifeline import Lifeline
from rlinf_async._wire.mesh import launch_error, start_nodes
from rlinf_async._wire.node_config import NodeConfig
from rlinf_async.errors import LaunchError

from .driver import Driver
from .options import Options
from .orphans import Orphans
from .remote.archive import Archive, pack
from .remote.host_check import HostCheck
from .remote.plan import PlannedNode, driver_python
from .report import Report

if TYPE_CHECKING:
    from .control.run_places import LocalRun

INTERRUPTED: Final = 130

_SCRIPT_GRACE_S: Final = 2.5  # limit for the script after Ctrl-C; the whole shutdown may take five seconds
_ALL_GRACE_S: Final = 4.0
_OWN_REPORT_S: Final = 0.5  # limit for a lost node's own lifeline to explain a loss that another node reported
_CUT_TIMEOUT_S: Final = 1.5  # limit for processes that need no clean shutdown or must not have one
_END_COMMAND_TIMEOUT_S: Final = 10.0  # limit for srun, which retries for ever while a node of the job is down
_BUNDLE_TIMEOUT_S: Final = 3.0
_VERDICT_TIMEOUT_S: Final = 8.0
"""Limit for the bundle of a run that may be stuck: processes are asked twice, and each silent one takes a second."""


def fresh_run_id() -> str:
    return secrets.token_hex(4)


class Job:
    """The nodes of a run, ready inside the ``async with`` block.

    ``interrupt`` and ``kill`` react to a first and a second Ctrl-C; both may be called at any time.

    Args:
        nodes: result of `rlinf_launcher.remote.plan.plan`.
        exported: variables for every node.
        environ: the launcher's environment, which the script inherits.
    """

    def __init__(
        self,
        nodes: Sequence[PlannedNode],
        options: Options,
        exported: Mapping[str, str],
        environ: Mapping[str, str],
        report: Report,
    ) -> None:
        self.run_id = fresh_run_id()
        self.was_interrupted = False
        self.unobserved: list[str] = []  # failures that the script did not notice; final once all nodes have ended
        self._nodes = nodes
        self._options = options
        self._exported = exported
        self._environ = environ
        self._report = report
        self._inspection = HostCheck(nodes, options, self.run_id, report)
        self._main: asyncio.Task[Any] | None = None
        self._phase = "new"
        self._end_at_once = asyncio.Event()
        self._has_expired = asyncio.Event()
        self._bundling: asyncio.Timeout | None = None
        self._end_by: float | None = None
        self._going: set[int] = set()
        self._peers: list[dict[str, Any]] = []
        self._watchers: dict[int, asyncio.Task[None]] = {}
        self._lost: set[int] = set()
        self._shown: set[int] = set()
        self._driver: Driver | None = None
        self._orphans: Orphans | None = None

    @property
    def _lifelines(self) -> Mapping[int, Lifeline]:
        return self._inspection.lifelines

    async def __aenter__(self) -> Job:
        """Start all nodes.

        Raises:
            LaunchError: lists every node that failed; the others have been stopped.
            ConfigError: the ``--sync`` folder cannot be read.
        """
        self._main = asyncio.current_task()
        self._phase = "starting"
        self._report.begin(self.run_id, self._nodes, self._expected_logs())
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop()

    async def run_script(self) -> int:
        """Run the script until it ends; return its exit code, 128 + n for signal n."""
        environ = {**self._environ, **self._exported, "RLINF_RUN_ID": self.run_id}
        environ["RLINF_NODE_SOCKET"] = self._here["socket"]
        if self._options.trace is not None:
            environ["RLINF_TRACE"] = str(self._options.trace)
        if self._options.fail_fast:
            environ["RLINF_FAIL_FAST"] = "1"
        if path := self._inspection.answers[self._here["node"]]["python_path"]:
            environ["PYTHONPATH"] = os.pathsep.join(path)
        if self._options.rlinf:
            environ |= import_hook.variables(environ)
        if self.was_interrupted:
            return INTERRUPTED
        self._phase = "running"
        self._orphans = Orphans(self.run_id)
        try:
            self._driver = Driver(script_command(self._options), environ)
        except OSError as error:
            raise LaunchError(f"the script cannot be started: {error}{limit_met(error)}") from error
        try:
            async with asyncio.TaskGroup() as tasks:
                ending = tasks.create_task(self._end_once_expired())
                code = await self._driver.wait()
                if not self._has_expired.is_set():
                    ending.cancel()
            return code
        finally:
            await self._driver.close()

    async def keep_bundle(self, *, wants_verdict: bool = False) -> None:
        """Write everything known about the run into one file beside its logs, and report its path; this takes seconds.

        Live nodes are queried; the bundle of a run that has ended contains this machine's files only.
        """
        from .control.run_bundle import keep_bundle  # imported late, because a successful run does not need a bundle
        from .control.snapshot_taking import VERDICT

        if (run := self._local_run()) is None or run.logs is None:
            return
        path = run.logs / bundle_name(self.run_id)
        timeout = _VERDICT_TIMEOUT_S if wants_verdict else _BUNDLE_TIMEOUT_S
        try:
            async with asyncio.timeout(timeout) as self._bundling:
                missing = (await keep_bundle(run, path, timeout, wants_verdict=wants_verdict)).missing
        except TimeoutError:
            self._report.warn("there is no bundle of the run: it was not written in time")
        except Exception as error:  # an error in the bundle must not change the run's result
            self._report.warn(f"there is no bundle of the run: {type(error).__name__}: {error}")
        else:
            self._report.bundle(path)
            if not wants_verdict:
                missing.pop(VERDICT)  # only a stuck run needs a verdict, and more time would not produce one
            for name, reason in list(missing.items())[:1]:
                more = f", and {len(missing) - 1} more (rlinf-ctl bundle has more time)" if len(missing) > 1 else ""
                self._report.warn(f"missing in the bundle: {name}: {reason}{more}")
        finally:
            self._bundling = None

    def _local_run(self) -> LocalRun | None:
        """Return this machine's part of the run; None if nothing was started, or its logs are removed with the run."""
        from .control.run_places import LocalRun

        local_peers = [self._peers[node.rank] for node in self._nodes if node.is_here and self._peers]
        logs = Path(local_peers[0]["log_dir"]) if local_peers and local_peers[0]["log_dir"] else None
        if logs is None or logs.is_relative_to(Path(local_peers[0]["socket"]).parent) or not logs.is_dir():
            return None
        sockets = {peer["node"]: Path(peer["socket"]) for peer in local_peers}
        return LocalRun(self.run_id, time.time(), sockets, is_alive=self._phase != "stopping", logs=logs)

    async def _end_once_expired(self) -> None:
        await self._has_expired.wait()
        await self.keep_bundle(wants_verdict=True)
        self.interrupt(signal.SIGTERM)

    def expire(self) -> None:
        """Shut everything down because of ``--timeout``, after a bundle has recorded the run's state."""
        self.was_interrupted = True
        if self._phase == "running":
            self._has_expired.set()
        else:
            self.interrupt(signal.SIGTERM)

    def interrupt(self, number: int) -> None:
        """Shut everything down within five seconds; the script receives ``number`` as its signal."""
        self.was_interrupted = True
        loop = asyncio.get_running_loop()
        self._end_by = loop.time() + _ALL_GRACE_S
        self._abandon_bundle()
        if self._phase == "starting":
            assert self._main is not None
            self._main.cancel()
        elif self._phase == "running" and self._driver is not None:
            self._driver.interrupt(number)
            loop.call_later(_SCRIPT_GRACE_S, self._driver.kill)
        elif self._phase == "stopping":  # the nodes have been given more time
            loop.call_later(_ALL_GRACE_S, self._end_at_once.set)

    def kill(self) -> None:
        self.was_interrupted = True
        self._end_at_once.set()
        self._abandon_bundle()
        if self._driver is not None:
            self._driver.kill()

    def _abandon_bundle(self) -> None:
        if self._bundling is not None:
            self._bundling.reschedule(asyncio.get_running_loop().time())

    @property
    def _here(self) -> Mapping[str, Any]:
        """Facts about the first node on this machine, whose daemon serves the script."""
        rank = next(node.rank for node in self._nodes if node.is_here)
        return self._peers[rank]

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        inspection = self._inspection
        timeout = self._options.start_timeout
        inspection.python_path = self._exported.get("PYTHONPATH", "")
        inspection.archive = await self._pack()
        deadline = None if timeout is None else loop.time() + timeout
        if failures := await inspection.look(deadline):
            hidden = [node.rank for node in self._nodes if node.hidden]
            raise launch_error([node.name for node in self._nodes], failures, hidden)
        began = time.monotonic()
        configs = self._configs()
        for node in self._nodes:
            self._going.add(node.rank)
            await self._start_daemon(node)

        def progress(rank: int, state: str, told: Mapping[str, Any]) -> None:
            columns: dict[str, str | float] = {}
            if state == "up":
                gpus = len(told["facts"].get("gpus") or ())
                columns = {"daemon": round(time.monotonic() - began, 1), "gpus": gpus}
            self._report.node(rank, state, told.get("error") or told.get("address") or "", **columns)

        lifelines = [self._lifelines[node.rank] for node in self._nodes]
        left = None if deadline is None else max(1.0, deadline - loop.time())
        self._peers = await start_nodes(lifelines, configs, timeout=left, progress=progress)
        for node, lifeline in zip(self._nodes, lifelines, strict=True):
            lifeline.on_stderr = self._report.output
            self._watchers[node.rank] = asyncio.create_task(self._watch(node.rank), name=f"watch {node.name}")
        for note, name in {peer["note"]: peer["name"] for peer in reversed(self._peers) if peer["note"]}.items():
            self._report.warn(f"{name}: {note}")
        if (logs := self._here["log_dir"]) not in ("", self._expected_logs()) and not self._here["note"]:
            self._report.note(f"logs in {logs}")  # a prologue or -e has changed $TMPDIR
        self._report.ready(self._shape())

    def _expected_logs(self) -> str:
        return str(self._options.log_dir or usual_log_parent(temporary_folder()) / self.run_id)

    async def _pack(self) -> Archive | None:
        folder = self._options.sync
        if folder is None or all(node.is_here for node in self._nodes):
            return None
        packed: Future[Archive] = Future()
        packed.set_running_or_notify_cancel()

        def work() -> None:
            try:
                packed.set_result(pack(folder))
            except BaseException as error:
                packed.set_exception(error)

        # Not in the loop's executor: an interrupted launcher would wait for its threads, and a folder may be huge.
        threading.Thread(target=work, name="rlinf-pack", daemon=True).start()
        archive = await asyncio.wrap_future(packed)
        if archive.warning:
            self._report.warn(archive.warning)
        self._report.note(f"--sync ships {folder}: {archive.files} files, {len(archive.data) / 1e6:.1f} MB compressed")
        return archive

    async def _start_daemon(self, node: PlannedNode) -> None:
        answer = self._inspection.answers[node.rank]
        order = {
            "op": "go",
            "argv": [answer["executable"], "-P", "-m", "rlinf_launcher.daemon"],
            "env": {**self._exported, **node.host.env, "RLINF_RUN_ID": self.run_id},
        }
        await self._lifelines[node.rank].send(order)

    def _configs(self) -> list[NodeConfig]:
        options, binds = self._options, self._inspection.binds()
        authority = None
        if len(self._nodes) > 1:
            # Imported late, because the import is slow and a single node does not need it.
            from rlinf_async._wire.credentials import RunAuthority

            authority = RunAuthority(self.run_id)
        configs = []
        for node in self._nodes:
            host, answer = node.host, self._inspection.answers[node.rank]
            env = {name: value for name, value in self._exported.items() if name != "PYTHONPATH"}
            configs.append(
                NodeConfig(
                    run=self.run_id,
                    marker=self._lifelines[node.rank].marker,
                    node=node.rank,
                    num_nodes=sum(not each.hidden for each in self._nodes),
                    name=node.name,
                    hidden=node.hidden,
                    bind=binds[node.rank],
                    credentials=authority.issue(node.rank) if authority is not None else None,
                    log_dir=str(options.log_dir) if options.log_dir else None,
                    env={**env, **host.env},
                    max_gpus=host.max_slots if host.slots is None else host.slots,
                    gpus=host.gpus,
                    fake_gpus=host.fake_gpus,
                    labels=host.labels,
                    sync=(str(options.sync), answer["sync"]) if answer["sync"] else None,
                    run_dir=answer["run_dir"],
                    tee=options.tee,
                    port_range=options.port_range,
                    python_flags=interpreter_flags(),
                    launched=True,
                )
            )
        return configs

    def _shape(self) -> dict[str, int]:
        visible = [peer for peer in self._peers if not peer["hidden"]]
        gpus = sum(len(peer["facts"].get("gpus") or ()) for peer in visible)
        cpus = {}  # nodes on one machine share its cores
        for node, peer in zip(self._nodes, self._peers, strict=True):
            if not node.hidden:
                cpus["" if node.is_here else node.host.identity] = peer["facts"].get("cpus", 0)
        return {"node": len(visible), "GPU": gpus, "CPU": sum(cpus.values())}

    async def _watch(self, rank: int) -> None:
        while True:
            try:
                message = await self._lifelines[rank].receive(None)
            except LaunchError as error:
                # The loss has already been reported, and the exit status adds an explanation.
                if rank in self._shown and self._phase != "stopping":
                    self._report.warn(f"{self._nodes[rank].name}, which was lost: {error}")
                self._show_loss(rank, str(error))
                self._count_own_loss(rank, error)
                await self._end_remote_daemon(rank)
                return
            if message.get("event") == "node_lost":
                await self._on_loss_reported(rank, int(message["node"]), str(message["reason"]))
            elif message.get("event") == "cut_off":
                self._show_loss(rank, f"it was cut off, and has ended itself: {message['reason']}")
            elif message.get("event") == "unobserved":
                self.unobserved += map(str, message["failures"])
            elif message.get("event") == "end_run" and not self.was_interrupted:
                self._report.note(f"{message['by']}: ending in order, within 5 s")
                self.interrupt(signal.SIGTERM)
            elif message.get("event") == "swept":
                self._show_loss(rank, f"it was ended by {message['by']}")
                self.interrupt(signal.SIGTERM)
                return

    async def _on_loss_reported(self, reporter: int, reported: int, reason: str) -> None:
        """Report the loss of a node, or of a link if it is unknown which side is lost."""
        # A node that was cut off, or stopped for a while, believes that all others are lost.  So only the script's own
        # node and the lost node's lifeline are trusted; any other node's report is shown as the loss of a link.
        is_own_word = reporter == self._here["node"]
        if is_own_word:  # record it now, because the script may end before the loss is reported
            self._lost.add(reported)
        if reported in self._watchers:  # the node's own lifeline may soon report a better reason
            await asyncio.wait({self._watchers[reported]}, timeout=_OWN_REPORT_S)
        if is_own_word:
            self._show_loss(reported, reason)
        elif self._phase != "stopping" and self._lost.isdisjoint((reporter, reported)):
            names = f"{self._nodes[reporter].name} has lost its link to {self._nodes[reported].name}"
            self._report.warn(f"{names}, and one of the two may be lost: {reason}")

    def _count_own_loss(self, rank: int, error: LaunchError) -> None:
        """Count a failure of the script's own node, but not a clean exit (code 0) or a kill by this side (a signal)."""
        # That daemon held the failures that the script did not notice, so they are lost with it.
        if self._driver is not None and rank == self._here["node"] and (self._lifelines[rank].exit_code or 0) > 0:
            self.unobserved.append(f"the script's own node, {self._nodes[rank].name}, was lost: {error}")

    async def _end_remote_daemon(self, rank: int) -> None:
        """End a remote daemon that would not notice that its connection was killed."""
        command = self._nodes[rank].connector.end_command(self._inspection.answers[rank])
        if command and (self._lifelines[rank].exit_code or 0) < 0:
            ending = await Lifeline.start(command, name=self._nodes[rank].name)
            await ending.close(_END_COMMAND_TIMEOUT_S)

    def _show_loss(self, rank: int, reason: str) -> None:
        if self._phase != "stopping" and rank not in self._shown:
            self._lost.add(rank)
            self._shown.add(rank)
            self._report.node(rank, "lost", reason)

    async def _stop(self) -> None:
        self._phase = "stopping"
        stopping = asyncio.ensure_future(self._stop_nodes())
        end_at_once = asyncio.ensure_future(self._end_at_once.wait())
        try:
            await asyncio.wait({stopping, end_at_once}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not stopping.done():
                stopping.cancel()
            end_at_once.cancel()
            await asyncio.gather(stopping, end_at_once, return_exceptions=True)
            await self._cut_nodes()
            await asyncio.gather(*self._watchers.values(), return_exceptions=True)
            if self._orphans is not None:
                self._orphans.end()
            self._remove_run_dirs()
            self._report.close()

    async def _stop_nodes(self) -> None:
        """Shut all nodes down: daemons are asked to end, and waiting preflights see end-of-file on stdin."""
        grace = settings.NODE_STOP_GRACE_S()
        left = grace if self._end_by is None else max(0.3, self._end_by - asyncio.get_running_loop().time())
        cut = grace if self._end_by is None else 1.0
        await asyncio.gather(
            *(
                lifeline.stop_lost(is_here=self._nodes[rank].is_here)
                if rank in self._lost
                else lifeline.stop(left, cut=cut)
                if rank in self._going
                else lifeline.close(_CUT_TIMEOUT_S)
                for rank, lifeline in self._lifelines.items()
            )
        )

    async def _cut_nodes(self) -> None:
        """Cut every lifeline and kill processes that still hold one."""
        await asyncio.gather(*(lifeline.close(_CUT_TIMEOUT_S) for lifeline in self._lifelines.values()))

    def _remove_run_dirs(self) -> None:
        for rank, answer in self._inspection.answers.items():
            if self._nodes[rank].is_here and answer["run_dir"]:
                shutil.rmtree(answer["run_dir"], ignore_errors=True)


def script_command(options: Options) -> list[str]:
    assert options.script is not None
    target = ["-m", options.script] if options.module else [options.script]
    return [driver_python(options), *interpreter_flags(), *target, *options.args]


def script_is_missing(options: Options) -> bool:
    """True if the script does not exist, in which case Python reports the error before any node starts."""
    is_file = options.script is not None and not options.module
    return is_file and not os.path.exists(options.script or "")


def missing_script_text(options: Options) -> str:
    """Return the error about a missing script, for a check or a preview."""
    here = surroundings.working_directory()
    return f"script: there is no {options.script} here\nfix: check the path; it is seen from {here}"
