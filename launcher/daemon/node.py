"""``Node``, a daemon's main object, which handles its lifecycle, launcher commands, local socket and node links."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import socket
import sys
from collections.abc import Coroutine
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._core import frames, operations
from rlinf_async._core.frames import FrameError
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.pool import Pool
from rlinf_async._core.segment import close_fds
from rlinf_async._wire.local_socket import check_peer, listen, peer_of
from rlinf_async._wire.unix import Connection
from rlinf_async.errors import AuthError, LaunchError, RLinfAsyncError

from .admission import HelloAdmission
from .boot import Boot
from .daemon_control import DaemonControl
from .endpoint import Endpoint
from .fork_server import PARENT_SOCKET
from .guardian import remove
from .handlers import Requester
from .network import Network
from .node_link import NodeLink
from .process_state import is_exiting
from .router import Router
from .service import DaemonService
from .sign_of_life import SignOfLife
from .templates import Templates
from .worker_groups import LocalGroup, NewProcess, Site
from .worker_process import WorkerProcess

logger = own_logger(__name__)

LOG_DIR: Final = "RLINF_LOG_DIR"  # environment variable that gives workers this node's log directory

_ACCEPT_AGAIN_S: Final = 0.1  # pause after an accept that failed for lack of descriptors or memory

_REUSED_MEMORY_BYTES: Final = 64 << 20

_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_SWEPT_BY: Final = "swept-by"
"""File in the run directory where ``launcher/remote/sweeper.py`` records which sweep ended a live node."""

_HASTY_GRACE_S: Final = 2.0
"""Longest grace for workers when the node ends abnormally; must be below the guardian's ``_ORDERLY_END_S`` (4 s)."""

_END_TIMEOUT_S: Final = 5
"""Seconds allowed for shutdown after SIGTERM or a cut-off before ``signal.alarm`` ends the process."""


class Node:
    """A node's daemon; ``run`` returns after the last process has ended.

    Lifecycle: up (socket listens, template imports) -> peers known -> links open -> ready -> stop command, cut lifeline
    or SIGTERM -> groups closed, links closed, run directory removed.

    The class has more than 30 methods because it implements the callbacks of the launcher, the local socket and links.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        boot: Boot,
        templates: Templates,
        facts: dict[str, Any],
        control: DaemonControl,
        network: Network,
        new_process: NewProcess = WorkerProcess,
        sign_of_life: SignOfLife | None = None,
    ) -> None:
        self._loop = loop
        self._sign_of_life = sign_of_life
        self._control = control
        self._network = network
        self._boot = boot
        self._templates = templates
        self._facts = facts
        self._stop = asyncio.Event()
        self._in_order = False
        self._fenced_for = ""
        self._closing: set[asyncio.Task[None]] = set()
        self._tasks: asyncio.TaskGroup
        self._expected_links: dict[int, asyncio.Future[Any]] = {}
        self._names: dict[int, str] = {boot.config.node: boot.config.name}
        self._bodies = Pool(_REUSED_MEMORY_BYTES)
        site = Site(
            run=boot.config.run,
            node=boot.config.node,
            name=boot.config.name,
            address=boot.config.bind or "127.0.0.1",
            log_dir=boot.log_dir,
            environment={
                **boot.worker_environment,
                PARENT_SOCKET: str(boot.socket_path),
                LOG_DIR: str(boot.log_dir),
            },
            cpus=int(facts.get("cpus") or 1),
            sync=boot.config.sync,
            tee=boot.config.tee,
            ports=boot.config.ports,
        )
        self._router = Router(loop, boot.config.node, self._on_request)
        self._admission = HelloAdmission(loop, self._begin, self._driver_gone)
        self._service = DaemonService(loop, site, templates, self._router, self._abandon, new_process)
        self._service.handlers.register(operations.EndRun, self._end_run)
        self._service.membership.on_lost = self._on_node_lost
        self._service.membership.on_cut_off = self._on_cut_off

    def __repr__(self) -> str:
        return f"<Node {self._boot.config.node} {self._boot.config.name} {self._router!r}>"

    async def run(self) -> None:
        listener = listen(str(self._boot.socket_path))
        self._listen(listener)
        self._control.on_sigterm(self._on_sigterm)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                address = await self._network.serve(self._on_link)
                self._start(self._service.probes.find_renderers(self._facts), "the search for EGL devices")
                commands = self._tasks.create_task(
                    _logged(self._follow_commands(address), "the talk with the launcher")
                )
                await self._stop.wait()
                self._loop.remove_reader(listener.fileno())
                await self._close_everything()
                commands.cancel()
            if self._service.unobserved:
                self._send_to_launcher({"event": "unobserved", "failures": list(self._service.unobserved.values())})
            if self._fenced_for:
                raise LaunchError(self._fenced_for)
        finally:
            if self._sign_of_life is not None:
                # The loop no longer rewinds the timer during the cleanup, so disarm it.
                self._sign_of_life.wind_up(0)
            # Remove the reader before close(), because uvloop aborts on a reader of a closed file.
            self._loop.remove_reader(listener.fileno())
            listener.close()
            self._service.groups.close_stores()
            self._service.traces.close()
            self._bodies.close()
            remove([str(self._boot.run_dir)])

    # -- the launcher -------------------------------------------------------------------------------------------

    def _send_to_launcher(self, event: dict[str, Any]) -> None:
        self._control.send(event)

    async def _follow_commands(self, address: str | None) -> None:
        """Report this node as up and carry out the launcher's commands until "stop" or the lifeline's end."""
        self._send_to_launcher(
            {
                "event": "up",
                "address": address,
                "socket": str(self._boot.socket_path),
                "pid": os.getpid(),
                "facts": self._facts,
                "log_dir": str(self._boot.log_dir),
                "note": self._boot.logs.note,
            }
        )
        try:
            async with contextlib.aclosing(self._control.commands()) as commands:
                async for command in commands:
                    if command["op"] == "stop":
                        self._in_order = True
                        return
                    if command["op"] == "peers":
                        await self._meet(command["peers"])
        finally:
            self._stop.set()

    # -- other nodes --------------------------------------------------------------------------------------------

    def _on_link(self, link: Any) -> None:
        self._add_node_link(link)
        expected = self._expected(link.peer)
        if not expected.done():
            expected.set_result(None)

    def _expected(self, node: int) -> asyncio.Future[Any]:
        return self._expected_links.setdefault(node, self._loop.create_future())

    def _add_node_link(self, link: Any) -> None:
        if self._stop.is_set():
            # This node may already have closed its links.  In that case, the new link's body sender would never end,
            # and this node's task group would wait for it forever.
            # tests/launcher/daemon/test_node.py::test_a_link_that_comes_while_the_node_ends_is_closed
            self._start(link.close(), f"closing the link to node {link.peer}")
            return
        name = self._names.get(link.peer, f"node {link.peer}")
        node_link = NodeLink(link.peer, name, link, self._from_node, self._on_link_over, self._bodies)
        self._router.node_links[link.peer] = node_link
        self._start(node_link.send_bodies(), f"sending to node {node_link.node}")
        node_link.open()
        if node_link.node == 0 and self._sign_of_life is not None:
            self._give_sign(node_link, self._sign_of_life)

    def _give_sign(self, root: NodeLink, sign_of_life: SignOfLife) -> None:
        """Arm the timer after which the guardian kills a silent daemon, shortly after node 0 declares the node lost."""
        if root.over is not None or self._stop.is_set():
            sign_of_life.wind_up(0)
            return
        sign_of_life.wind_up(1.1 * root.lease)
        self._loop.call_later(root.lease / 10, self._give_sign, root, sign_of_life)

    async def _meet(self, peers: list[dict[str, Any]]) -> None:
        """Open the links: dial higher-numbered nodes, await links from lower-numbered nodes; report ready or failed."""
        for peer in peers:
            self._names[peer["node"]] = peer["name"]
        for node, node_link in self._router.node_links.items():
            node_link.name = self._names.get(node, node_link.name)
        self._service.welcome = {"run": self._boot.config.run, "nodes": peers, "log_dir": str(self._boot.log_dir)}
        event: dict[str, Any] = {"event": "ready"}
        timeout = settings.NODE_LINK_TIMEOUT_S()
        try:
            async with asyncio.timeout(timeout), asyncio.TaskGroup() as tasks:
                for peer in peers:
                    if peer["node"] > self._boot.config.node:
                        tasks.create_task(self._dial(peer))
                    elif peer["node"] < self._boot.config.node:
                        tasks.create_task(self._await_link(peer["node"]))
        except* RLinfAsyncError as errors:
            event = {"event": "failed", "error": "; ".join(str(error) for error in _leaves(errors))}
        except* TimeoutError:
            connected = {*self._router.node_links, self._boot.config.node}
            missing = ", ".join(peer["name"] for peer in peers if peer["node"] not in connected)
            text = f"no link to {missing} within {timeout:g} s (is a firewall between the nodes?)"
            event = {"event": "failed", "error": text}
        self._send_to_launcher(event)
        boot = self._boot
        self._service.black_box.describe(self._facts, boot.told_config, boot.worker_environment, _places(peers))

    async def _await_link(self, node: int) -> None:
        await self._expected(node)

    async def _dial(self, peer: dict[str, Any]) -> None:
        self._add_node_link(await self._network.dial(peer["node"], peer["address"]))

    def _from_node(self, node_link: NodeLink, frame: list[Any], fds: list[int]) -> None:
        if node_link.lost is not None:  # the node was declared lost, and its link is about to be closed
            close_fds(fds)
            return
        if frame[0] == frames.GONE:
            if frames.node_of(frame[3]) == node_link.node:
                self._service.drop_owner(frame[3], ended=bool(frame[4]))
            return
        try:
            self._router.from_node(node_link, frame, fds)
        except Exception:
            # A process on that node has sent a malformed frame.  If the error propagated, it would end the link, and
            # the whole node would be declared lost.
            # tests/test_bad_frames.py::test_a_frame_that_makes_no_sense_ends_its_connection_only
            logger.exception("node %d sent a frame that makes no sense", node_link.node)

    def _on_link_over(self, node_link: NodeLink, reason: str) -> None:
        if not self._stop.is_set():
            logger.warning("the link to node %d (%s) is over: %s", node_link.node, node_link.name, reason)
            self._service.membership.link_over(node_link, reason)

    def _on_node_lost(self, node_link: NodeLink, facts: dict[str, Any]) -> None:
        if self._stop.is_set():
            return
        reason = facts["reason"]
        logger.warning("node %d (%s) is lost: %s", node_link.node, node_link.name, reason)
        self._send_to_launcher({"event": "node_lost", "node": node_link.node, "reason": reason})
        self._service.black_box.death(f"node {node_link.node} ({node_link.name})", 0, f"was lost: {reason}")
        self._service.lost.append(facts)
        self._router.broadcast_event("node_lost", facts)
        self._service.drop_node(node_link.node)
        # This side decided that the node is lost; closing the link informs the other side.
        self._start(node_link.close(), f"closing the link to node {node_link.node}")

    def _on_cut_off(self, reason: str) -> None:
        """End this node, because the others continue without it and may restart its ranks elsewhere."""
        # Kill the workers first, since their replacements may already be running.  The rest has a few seconds to shut
        # down; after that, the kernel kills this process, and the guardian kills whatever is left.  No step relies on
        # the lifeline, which may seem intact for hours after a network failure.
        if self._stop.is_set():
            return
        self._fenced_for = f"node {self._boot.config.node} is cut off from the others and has ended: {reason}"
        logger.error("%s", self._fenced_for)
        for endpoint in list(self._router.endpoints.values()):
            if endpoint.process is not None:
                endpoint.process.kill(self._fenced_for)
        self._send_to_launcher({"event": "cut_off", "reason": reason})
        self._router.broadcast_event("node_lost", {"node": 0, "name": self._names.get(0, "node 0"), "reason": reason})
        self._end_soon()

    # -- local processes ----------------------------------------------------------------------------------------

    def _listen(self, listener: socket.socket) -> None:
        if not self._stop.is_set():
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno in _SHORT and not self._admission.end_oldest():
                # The socket stays readable, so without a pause the loop would spin until a descriptor is free.
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(_ACCEPT_AGAIN_S, self._listen, listener)
            return
        try:
            check_peer(sock)
        except (AuthError, OSError) as error:
            logger.warning("a connection was refused: %s", error)
            sock.close()
            return
        self._admission.add(sock)

    def _begin(self, sock: socket.socket) -> Endpoint:
        """Create the endpoint for a connection that has sent its first bytes; its first frame must be HELLO."""
        pid, _ = peer_of(sock)
        pidfd = os.pidfd_open(pid)
        endpoint = self._router.new_endpoint("driver")
        endpoint.pid, endpoint.pidfd = pid, pidfd
        endpoint.connection = Connection(
            sock,
            self._loop,
            on_frame=lambda frame, fds: self._from_driver(endpoint, frame, fds),
            on_closed=lambda reason: self._cut_off(endpoint),
        )
        # A forked child may hold the driver's socket open, so only the pidfd reliably reports the driver's death.
        self._loop.add_reader(pidfd, self._driver_gone, endpoint)
        endpoint.connection.open()
        return endpoint

    def _from_driver(self, endpoint: Endpoint, frame: list[Any], fds: list[int]) -> None:
        if frame[0] == frames.HELLO and not endpoint.is_known:
            close_fds(fds)
            self._greet(endpoint, frame[3])
            return
        try:
            if not endpoint.is_known:
                close_fds(fds)
                raise FrameError("it has not said hello")
            self._router.from_endpoint(endpoint, frame, fds)
        except (FrameError, TypeError, ValueError, IndexError, AttributeError) as error:
            logger.warning("the connection of %r is closed: %s: %s", endpoint, type(error).__name__, error)
            self._driver_gone(endpoint)

    def _greet(self, endpoint: Endpoint, facts: Any) -> None:
        facts = facts if isinstance(facts, dict) else {}
        if facts.get("protocol") != frames.PROTOCOL:
            text = (
                f"protocol {facts.get('protocol')} of the driver (rlinf_async in Python {facts.get('python')}) is not "
                f"protocol {frames.PROTOCOL} of the daemon ({sys.executable}): both must be the same version"
            )
            self._router.send_event(endpoint.id, "refused", {"error": ["VersionMismatch", text]})
            self._loop.call_soon(self._driver_gone, endpoint)  # runs after the "refused" event has been sent
            return
        parent = None
        if facts.get("role") == "worker":
            try:
                parent = self._service.sub_workers.admit(endpoint, facts)
            except AuthError as error:
                logger.warning("a process is refused: %s", error)
                self._router.send_event(endpoint.id, "refused", {"error": ["AuthError", str(error)]})
                self._loop.call_soon(self._driver_gone, endpoint)
                return
        elif facts.get("role") == "operator":
            endpoint.role = "operator"  # operators only observe and are not part of the run
        endpoint.note_hello(facts)
        self._admission.remove(endpoint)
        self._service.greet(endpoint, parent)

    def _cut_off(self, endpoint: Endpoint) -> None:
        """Handle a closed socket: a driver or a live subprocess has left; otherwise the pidfd will report the death."""
        if endpoint.root is None or not is_exiting(endpoint.pid):
            self._driver_gone(endpoint)

    def _driver_gone(self, endpoint: Endpoint) -> None:
        if endpoint.pidfd < 0:
            return
        self._loop.remove_reader(endpoint.pidfd)
        pidfd, endpoint.pidfd = endpoint.pidfd, -1
        os.close(pidfd)
        self._admission.remove(endpoint)
        if endpoint.connection is not None:
            endpoint.connection.drain()  # reads the endpoint's last frames
            endpoint.connection.close()
            # Break the reference cycle, which the garbage collector would free only much later.
            endpoint.connection = None
        if endpoint.root is not None:
            self._service.end_sub_worker(endpoint)
        else:
            self._router.endpoints.pop(endpoint.number, None)
            self._router.end_resumptions(endpoint)
            if endpoint.is_known:  # a process that sent no HELLO owns nothing and was never announced
                self._service.inspection.note_left(endpoint)
                self._service.forget_endpoint(endpoint.id)

    def _on_request(self, source: int, number: int, operation: str, fields: Any) -> None:
        self._start(self._service.handlers.handle(Requester(source, number), operation, fields), operation)

    def _abandon(self, group: LocalGroup) -> None:
        self._start(self._service.groups.close_group(group, group.close_grace), f"closing group '{group.name}'")

    def _start(self, work: Coroutine[Any, Any, None], label: str) -> None:
        """Run a coroutine as a task of this node; its exception is logged and cancels no other task."""
        task = _logged(work, label)
        try:
            self._tasks.create_task(task)
        except RuntimeError:  # the task group has ended
            task.close()
            work.close()

    # -- close ------------------------------------------------------------------------------------------------

    async def _end_run(self, requester: Requester, op: operations.EndRun) -> bool:
        """Ask the launcher, if there is one, to end the run; otherwise end this node.  Return True if there is one."""
        logger.info("%s: ending", op.by)
        if self._boot.config.launched:
            self._send_to_launcher({"event": "end_run", "by": op.by})
        else:
            self._loop.call_soon(self._on_sigterm)  # runs after the answer has been sent
        return self._boot.config.launched

    def _on_sigterm(self) -> None:
        """End the node as on SIGTERM; if a sweep has left a note, pass its text on to the launcher."""
        note = self._boot.socket_path.with_name(_SWEPT_BY)
        with contextlib.suppress(OSError):
            self._send_to_launcher({"event": "swept", "by": note.read_text()})
            note.unlink()
        logger.info("SIGTERM: ending")
        self._end_soon()

    def _end_soon(self) -> None:
        self._control.end_within(_END_TIMEOUT_S)
        self._stop.set()

    async def _close_everything(self) -> None:
        self._service.groups.closing = True
        self._service.membership.close()
        self._service.probes.close()
        await self._service.run_metrics.close()
        if not self._in_order:
            # Close connections right away, so that other nodes learn of the loss without waiting for this node's
            # groups.
            await asyncio.gather(self._close_connections(), self._close_groups())
        else:
            await self._close_groups()
            await self._close_connections()
        await self._network.stop()
        # The other daemons end at the same time and may no longer answer.  A handler that waits for an answer would
        # keep this node's task group open.
        # tests/launcher/daemon/test_router.py::test_a_node_that_ends_waits_for_no_answer
        self._router.cancel_requests()
        self._templates.close()

    async def _close_groups(self) -> None:
        most, groups = math.inf if self._in_order else _HASTY_GRACE_S, self._service.groups
        await asyncio.gather(
            *(
                _logged(groups.close_group(group, min(group.close_grace, most)), f"closing group '{group.name}'")
                for group in list(groups.by_number.values())
            )
        )

    async def _close_connections(self) -> None:
        self._admission.close()
        for endpoint in list(self._router.endpoints.values()):
            if endpoint.pidfd >= 0:
                self._driver_gone(endpoint)
        node_links = self._router.node_links.values()
        await asyncio.gather(
            *(_logged(node_link.close(), f"closing the link to node {node_link.node}") for node_link in node_links)
        )


async def _logged(work: Coroutine[Any, Any, None], label: str) -> None:
    try:
        await work
    except Exception:
        logger.exception("%s failed", label)


def _places(peers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"node": peer["node"], "name": peer["name"], "host": peer["facts"].get("hostname", ""), "logs": peer["log_dir"]}
        for peer in peers
    ]


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves
