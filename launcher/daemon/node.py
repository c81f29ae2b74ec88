"""``Node``, a daemon's main object: life from boot to stop, launcher's protocol, local socket, links to nodes."""

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

from .admission import Admission
from .boot import Boot
from .endpoint import Endpoint
from .fork_server import PARENT_SOCKET
from .guardian import remove
from .handlers import Requester
from .near_side import NearSide
from .network import Network
from .node_link import NodeLink
from .process_state import is_exiting
from .router import Router
from .service import DaemonService
from .sign_of_life import SignOfLife
from .templates import Templates
from .worker_groups import Group, NewProcess, Site
from .worker_process import WorkerProcess

logger = own_logger(__name__)

LOG_DIR: Final = "RLINF_LOG_DIR"
"""What tells workers where this node's logs are."""

_ACCEPT_AGAIN_S: Final = 0.1
"""Seconds until a connection is accepted again where there were no descriptors or memory for one."""

_KEPT_BODIES_BYTES: Final = 64 << 20
"""Memory that is kept for the next bodies of other nodes' messages."""

_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_SWEPT_BY: Final = "swept-by"
"""``launcher/remote/sweeper.py`` writes it into the run directory of a live node."""

_HASTY_GRACE_S: Final = 2.0
"""Seconds that workers have at most where this node does not end in order: the guardian waits no longer than 4 s."""

_END_TIMEOUT_S: Final = 5
"""Seconds after a SIGTERM, or once it is cut off, in which this process ends in order; then the kernel ends it."""


class Node:
    """A node's daemon: ``run`` lasts from the first line on stdin to the end of the last process.

    Lifecycle: up (socket listens, template imports) -> peers known -> links open -> ready -> stop, or lifeline cut or
    SIGTERM -> groups closed, links closed, run directory removed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        boot: Boot,
        templates: Templates,
        facts: dict[str, Any],
        near_side: NearSide,
        network: Network,
        new_process: NewProcess = WorkerProcess,
        sign_of_life: SignOfLife | None = None,
    ) -> None:
        self._loop = loop
        self._sign_of_life = sign_of_life
        self._near_side = near_side
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
        self._bodies = Pool(_KEPT_BODIES_BYTES)
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
        self._admission = Admission(loop, self._begin, self._driver_gone)
        self._service = DaemonService(loop, site, templates, self._router, self._abandon, new_process)
        self._service.handlers.register(operations.EndRun, self._end_run)
        self._service.membership.on_lost = self._on_node_lost
        self._service.membership.on_cut_off = self._on_cut_off

    def __repr__(self) -> str:
        return f"<Node {self._boot.config.node} {self._boot.config.name} {self._router!r}>"

    async def run(self) -> None:
        listener = listen(str(self._boot.socket_path))
        self._listen(listener)
        self._near_side.on_sigterm(self._on_sigterm)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                address = await self._network.serve(self._on_link)
                self._start(self._service.probes.find_renderers(self._facts), "the search for EGL devices")
                conversation = self._tasks.create_task(_logged(self._converse(address), "the talk with the launcher"))
                await self._stop.wait()
                self._loop.remove_reader(listener.fileno())
                await self._close_everything()
                conversation.cancel()
            if self._service.unobserved:
                self._say({"event": "unobserved", "failures": list(self._service.unobserved.values())})
            if self._fenced_for:
                raise LaunchError(self._fenced_for)
        finally:
            if self._sign_of_life is not None:
                self._sign_of_life.wind_up(0)  # no loop winds it up while this process sweeps up
            self._loop.remove_reader(listener.fileno())  # also of a start that failed: uvloop aborts without its file
            listener.close()
            self._service.groups.close_stores()
            self._service.traces.close()
            self._bodies.close()
            remove([str(self._boot.run_dir)])

    # -- the near side ------------------------------------------------------------------------------------------

    def _say(self, event: dict[str, Any]) -> None:
        self._near_side.say(event)

    async def _converse(self, address: str | None) -> None:
        """Do what the near side says until it says stop, or is gone."""
        self._say(
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
            async with contextlib.aclosing(self._near_side.orders()) as orders:
                async for order in orders:
                    if order["op"] == "stop":
                        self._in_order = True
                        return
                    if order["op"] == "peers":
                        await self._meet(order["peers"])
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
            # This node may have taken leave of the others already: the sender of this link's bodies would never end,
            # and this node waits for all its tasks.
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
        """Wind up the timer by which the guardian ends this process about when node 0, which decides, gives it up."""
        if root.over is not None or self._stop.is_set():
            sign_of_life.wind_up(0)
            return
        sign_of_life.wind_up(1.1 * root.lease)
        self._loop.call_later(root.lease / 10, self._give_sign, root, sign_of_life)

    async def _meet(self, peers: list[dict[str, Any]]) -> None:
        """Open the links: this node dials those of higher rank and waits for those of lower rank."""
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
            here = {*self._router.node_links, self._boot.config.node}
            missing = ", ".join(peer["name"] for peer in peers if peer["node"] not in here)
            text = f"no link to {missing} within {timeout:g} s (is a firewall between the nodes?)"
            event = {"event": "failed", "error": text}
        self._say(event)
        boot = self._boot
        self._service.black_box.describe(self._facts, boot.told_config, boot.worker_environment, _places(peers))

    async def _await_link(self, node: int) -> None:
        await self._expected(node)

    async def _dial(self, peer: dict[str, Any]) -> None:
        self._add_node_link(await self._network.dial(peer["node"], peer["address"]))

    def _from_node(self, node_link: NodeLink, frame: list[Any], fds: list[int]) -> None:
        if node_link.lost is not None:  # one that is there, and is out of the run: its link is about to be closed
            close_fds(fds)
            return
        if frame[0] == frames.GONE:
            if frames.node_of(frame[3]) == node_link.node:
                self._service.drop_owner(frame[3], ended=bool(frame[4]))
            return
        try:
            self._router.from_node(node_link, frame, fds)
        except Exception:
            # A process of that node has made it up.  Out of here it would end the link, and so this whole node.
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
        self._say({"event": "node_lost", "node": node_link.node, "reason": reason})
        self._service.black_box.death(f"node {node_link.node} ({node_link.name})", 0, f"was lost: {reason}")
        self._service.lost.append(facts)
        self._router.broadcast_event("node_lost", facts)
        self._service.drop_node(node_link.node)
        # Where this side gave up, the other one still has to learn it.
        self._start(node_link.close(), f"closing the link to node {node_link.node}")

    def _on_cut_off(self, reason: str) -> None:
        """The others go on without this node, and may start again elsewhere what runs here: it ends.

        Its workers are killed at once.  The rest ends in order within seconds; then the kernel ends this process, and
        the guardian what is left.  None of it needs the lifeline, which may seem intact for hours.
        """
        if self._stop.is_set():
            return
        self._fenced_for = f"node {self._boot.config.node} is cut off from the others and has ended: {reason}"
        logger.error("%s", self._fenced_for)
        for endpoint in list(self._router.endpoints.values()):
            if endpoint.process is not None:
                endpoint.process.kill(self._fenced_for)
        self._say({"event": "cut_off", "reason": reason})
        self._router.broadcast_event("node_lost", {"node": 0, "name": self._names.get(0, "node 0"), "reason": reason})
        self._end_soon()

    # -- local processes ----------------------------------------------------------------------------------------

    def _listen(self, listener: socket.socket) -> None:
        if not self._stop.is_set():
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """A driver connects, or a worker's subprocess."""
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno in _SHORT and not self._admission.end_oldest():
                # It would be readable all the time until something is closed.
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
        """It has said something: it gets an endpoint, and has to say hello first."""
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
        # A forked child of the driver may hold its socket open: its pidfd tells the truth.
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
            self._loop.call_soon(self._driver_gone, endpoint)  # once these words have left
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
            endpoint.role = "operator"  # it looks at the run, and is none of its processes
        endpoint.note_hello(facts)
        self._admission.remove(endpoint)
        self._service.greet(endpoint, parent)

    def _cut_off(self, endpoint: Endpoint) -> None:
        """A driver that closes its socket has left, and so has a subprocess that lives; else its pidfd tells soon."""
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
            endpoint.connection.drain()  # its last words
            endpoint.connection.close()
            endpoint.connection = None  # each refers to the other, and the collector would leave both for long
        if endpoint.root is not None:
            self._service.end_sub_worker(endpoint)
        else:
            self._router.endpoints.pop(endpoint.number, None)
            self._router.end_resumptions(endpoint)
            if endpoint.is_known:  # else nothing was done for it, and nobody has heard of it
                self._service.inspection.note_left(endpoint)
                self._service.forget_endpoint(endpoint.id)

    def _on_request(self, source: int, number: int, operation: str, fields: Any) -> None:
        self._start(self._service.handlers.handle(Requester(source, number), operation, fields), operation)

    def _abandon(self, group: Group) -> None:
        self._start(self._service.groups.close_group(group, group.close_grace), f"closing group '{group.name}'")

    def _start(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Make it one of this node's tasks: what goes wrong in it is logged and end nothing else."""
        task = _logged(work, what)
        try:
            self._tasks.create_task(task)
        except RuntimeError:  # this node has ended
            task.close()
            work.close()

    # -- the end ------------------------------------------------------------------------------------------------

    async def _end_run(self, requester: Requester, op: operations.EndRun) -> bool:
        """Have the launcher end the run, or end this node where there is no launcher; whether it is the launcher."""
        logger.info("%s: ending", op.by)
        if self._boot.config.launched:
            self._say({"event": "end_run", "by": op.by})
        else:
            self._loop.call_soon(self._on_sigterm)  # once the answer has left
        return self._boot.config.launched

    def _on_sigterm(self) -> None:
        """The guardian is gone, or passes on what ends this machine; or a sweep has left a note, and ends the run."""
        note = self._boot.socket_path.with_name(_SWEPT_BY)
        with contextlib.suppress(OSError):
            self._say({"event": "swept", "by": note.read_text()})
            note.unlink()
        logger.info("SIGTERM: ending")
        self._end_soon()

    def _end_soon(self) -> None:
        self._near_side.end_within(_END_TIMEOUT_S)
        self._stop.set()

    async def _close_everything(self) -> None:
        self._service.groups.closing = True
        self._service.membership.close()
        self._service.probes.close()
        await self._service.run_metrics.close()
        if not self._in_order:
            # Whoever counts on this node learns that it is lost now, and not when its groups have had their time.
            await asyncio.gather(self._take_leave(), self._close_groups())
        else:
            await self._close_groups()
            await self._take_leave()
        await self._network.stop()
        # The other daemons end at the same time, and some before they answer: a handler that waits for one would keep
        # this node from its end.  tests/launcher/daemon/test_router.py::test_a_node_that_ends_waits_for_no_answer
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

    async def _take_leave(self) -> None:
        """Of the other nodes and of the drivers."""
        self._admission.close()
        for endpoint in list(self._router.endpoints.values()):
            if endpoint.pidfd >= 0:
                self._driver_gone(endpoint)
        node_links = self._router.node_links.values()
        await asyncio.gather(
            *(_logged(node_link.close(), f"closing the link to node {node_link.node}") for node_link in node_links)
        )


async def _logged(work: Coroutine[Any, Any, None], what: str) -> None:
    try:
        await work
    except Exception:
        logger.exception("%s failed", what)


def _places(peers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where the nodes of the run are, and their logs."""
    return [
        {"node": peer["node"], "name": peer["name"], "host": peer["facts"].get("hostname", ""), "logs": peer["log_dir"]}
        for peer in peers
    ]


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves
