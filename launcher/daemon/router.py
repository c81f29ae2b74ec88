"""A daemon's frame router between local endpoints and other nodes; it tracks calls and fails calls to dead workers.

The router reads headers and never bodies.  An *endpoint* is a local process with a socket: a driver or a worker.  The
source of a frame is the connection on which it arrived, regardless of what the frame itself claims.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from rlinf_async._core import clock, frames, operations
from rlinf_async._core.descriptors import limit_met
from rlinf_async._core.frames import FrameError, Status
from rlinf_async._core.operations import Answer as Answered, Operation
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.segment import close_fds
from rlinf_async.errors import LaunchError, NodeLost

from .cleanup import run_all
from .endpoint import Endpoint
from .node_link import NodeLink
from .reply_coalescing import MAX_DELAY_S, Answer, ReplyCoalescing
from .routed_frames import (
    duplicate_fds,
    is_valid_queue_frame,
    is_well_formed,
    parse_hop,
    seal_body,
    slots_of,
    split_route,
)

logger = own_logger(__name__)

_QUEUE_KINDS: Final = frozenset({frames.PUT, frames.GET, frames.QUEUE})

_STATE_REQUESTS: Final = frozenset(
    operation.__name__
    for operation in (
        operations.RequestProgress,
        operations.QueueState,
        operations.Inspect,
        operations.NodeDetails,
        operations.ScrapeNode,
    )
)
"""Requests about another node's current state; they fail while the link to that node is down."""

_SIGNALS: Final = frozenset({frames.CANCEL, frames.CREDIT, frames.FAILED})

MAX_DIRECT_WORKERS: Final = 256
"""Limit on a node's workers with direct sockets, because each such worker costs every caller a file descriptor."""


class Router:
    """Frame router of one node, with its endpoints, its links to other nodes, and requests that await an answer.

    The class has more than 30 methods, one per kind of frame, because all kinds are routed using the same state.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, node: int, on_request: Callable[[int, int, str, Any], None]
    ) -> None:
        self.node = node
        self._loop = loop
        self._coalescing = ReplyCoalescing()
        self._release_timer: asyncio.TimerHandle | None = None
        self.endpoints: dict[int, Endpoint] = {}
        self.replaced: dict[int, Endpoint] = {}
        """Dead workers whose rank was restarted as another endpoint; late calls to them get their exit report."""
        self.node_links: dict[int, NodeLink] = {}
        self._on_request = on_request
        self.on_channel: Callable[[list[Any], list[int]], None]
        self._numbers = 0
        self._request_numbers = itertools.count(1)
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._requests_cancelled = False

    def __repr__(self) -> str:
        return f"<Router node {self.node} [{len(self.endpoints)} endpoints, {len(self.node_links)} node_links]>"

    def new_endpoint(self, role: str) -> Endpoint:
        self._numbers += 1
        endpoint = Endpoint(self.node, self._numbers, role)
        self.endpoints[endpoint.number] = endpoint
        return endpoint

    def grant_direct_sockets(self, worker: Endpoint) -> bool:
        """Decide whether a new worker may hand out direct sockets; each caller keeps one per worker that it calls."""
        having = sum(1 for endpoint in self.endpoints.values() if endpoint.has_direct_sockets)
        worker.has_direct_sockets = having < MAX_DIRECT_WORKERS
        return worker.has_direct_sockets

    # -- frames from local processes ------------------------------------------------------------------------------

    def from_endpoint(self, source: Endpoint, frame: list[Any], fds: list[int]) -> None:
        """Route a frame from a local process; raise FrameError before forwarding any part of a malformed frame."""
        kind = frame[0]
        frame[2] = source.id
        if type(frame[-1]) is memoryview:
            fds = seal_body(frame, self.node)
        if kind in _QUEUE_KINDS:
            self.to_queue(frame, fds)
            return
        if kind in (frames.CALL, frames.REPLY, frames.MESSAGE) and not is_well_formed(frame, fds):
            close_fds(fds)
            raise FrameError(f"{source!r} sent a frame of kind {kind} that makes no sense")
        if kind == frames.CALL:
            self._route_call(frame, fds)
        elif kind == frames.REPLY:
            slot = source.pending_calls.slot(frame[3], frame[4])
            if slot is None and frame[3] in source.resumed and type(frame[5]) is int:
                # The worker answered on a direct socket that lost the answer, and then sent SETTLED, so the call is no
                # longer pending here. Dropping the repeated answer would leave the caller waiting forever. Only a
                # worker whose socket to this very caller broke (``resumed``) may answer a call that is not pending.
                # tests/test_broken_sockets.py::test_calls_outlive_their_socket_and_run_once_in_order
                self.deliver(frame, fds)
                return
            if slot is None:
                close_fds(fds)
                logger.warning("%r answered a call that it had not got", source)
                return
            frame[5] = slot  # do not trust the slot that the worker claims
            if frame[6] in frames.FINAL:
                source.pending_calls.complete(frame[3], frame[4])
                self._gather(frame, fds)
            else:
                self.deliver(frame, fds)
        elif kind == frames.MESSAGE and source.exchanges:
            self._route_message(frame, fds)
        elif kind in _SIGNALS:
            self._route_signal(frame)
        elif kind == frames.REQUEST:
            close_fds(fds)
            if type(frame[4]) is not int or type(frame[5]) is not str:
                raise FrameError(f"{source!r} sent request {frame[4]!r} for {frame[5]!r}")
            if frame[3] == self.node:
                self._on_request(source.id, frame[4], frame[5], frame[6])
            else:
                self._send_to_node(frame[3], frame, ())
        elif kind == frames.SETTLED:
            close_fds(fds)
            self._complete_calls(source, frame[3])
        elif kind == frames.PENDING:
            close_fds(fds)
            self._note_pending(source, frame[3], frame[4])
        elif kind == frames.RESUME:
            close_fds(fds)
            self._resume(source, frame)
        elif kind == frames.DIRECT and source.has_direct_sockets and len(fds) == 1:
            self.deliver(frame, fds)
        else:
            close_fds(fds)
            if kind == frames.HELLO:
                source.note_hello(frame[3])
            else:
                logger.warning("%r sent a frame of kind %d, which is not its to send", source, kind)

    # -- frames from other nodes --------------------------------------------------------------------------------

    def from_node(self, node_link: NodeLink, frame: list[Any], fds: list[int]) -> None:
        if frames.node_of(frame[2]) != node_link.node:
            close_fds(fds)
            logger.error("node %d sent a frame in the name of node %d", node_link.node, frames.node_of(frame[2]))
            return
        kind = frame[0]
        if kind == frames.CALL:
            self._route_call(frame, fds)
        elif kind == frames.MESSAGE:
            self._route_message(frame, fds)
        elif kind in _QUEUE_KINDS and frame[3] == frames.endpoint(self.node, 0):
            self.on_channel(frame, fds)
        elif kind in (frames.REPLY, frames.ANSWER, frames.EVENT, frames.GIVE, frames.QUEUE):
            self.deliver(frame, fds)
        elif kind in _SIGNALS:
            self._route_signal(frame)
        elif kind == frames.REQUEST:
            self._on_request(frame[2], frame[4], frame[5], frame[6])
        else:
            close_fds(fds)

    # -- moving -------------------------------------------------------------------------------------------------

    def to_queue(self, frame: list[Any], fds: list[int]) -> None:
        """Send a queue request to the daemon that hosts the queue; raise FrameError if the request is malformed."""
        node = frames.node_of(frame[3])
        if frames.number_of(frame[3]) or not is_valid_queue_frame(frame, fds):
            close_fds(fds)
            raise FrameError(f"endpoint {frame[2]:#x} sent a frame of kind {frame[0]} that makes no sense")
        if node == self.node:
            self.on_channel(frame, fds)
        else:
            self._send_to_node(node, frame, fds)

    def deliver(self, frame: frames.Frame, fds: Sequence[int] = ()) -> None:
        target = frame[3]
        node = frames.node_of(target)
        if node != self.node:
            self._send_to_node(node, frame, fds)
            return
        endpoint = self.endpoints.get(frames.number_of(target))
        if endpoint is None:
            close_fds(fds)
            if frame[0] == frames.ANSWER and not frames.number_of(target):
                self._settle_request(frame)
            elif frame[0] == frames.EVENT and not frames.number_of(target):
                self.broadcast_event(frame[4], frame[5])
        elif frame[0] == frames.EVENT and frame[4] == "output":
            endpoint.send_lines(frame)
        else:
            endpoint.send(frame, fds)

    def request(self, node: int, operation: Operation[Any], number: int = 0) -> None:
        """Send a request to a daemon, possibly this one, ignoring the answer."""
        me = frames.endpoint(self.node, 0)
        name, fields = type(operation).__name__, vars(operation)
        if node == self.node:
            self._on_request(me, number, name, fields)
        else:
            self._send_to_node(node, (frames.REQUEST, 0, me, node, number, name, fields), ())

    def ask(self, node: int, operation: Operation[Answered]) -> asyncio.Future[Answered]:
        """Send a request to a daemon; return a future for its answer, or for a LaunchError if it refuses."""
        answer: asyncio.Future[Answered] = self._loop.create_future()
        number = next(self._request_numbers)
        self._requests[number] = answer
        answer.add_done_callback(lambda done: self._requests.pop(number))
        if self._requests_cancelled:
            answer.cancel()
        else:
            self.request(node, operation, number)
        return answer

    def cancel_requests(self) -> None:
        """Cancel all open and all future requests to other daemons."""
        self._requests_cancelled = True
        for answer in list(self._requests.values()):
            answer.cancel()

    def _settle_request(self, frame: frames.Frame) -> None:
        answer = self._requests.get(frame[4])
        if answer is not None and not answer.done():
            if frame[5]:
                answer.set_result(frame[6])
            else:
                answer.set_exception(LaunchError(str(frame[6][1])))

    def _gather(self, frame: list[Any], fds: list[int]) -> None:
        answers = self._coalescing.answer(frame, fds)
        if answers:
            self._deliver_together(answers)
        elif self._release_timer is None:
            self._release_timer = self._loop.call_later(MAX_DELAY_S, self._release)

    def _complete_calls(self, worker: Endpoint, calls: list[int]) -> None:
        """Mark the calls that a worker answered on direct sockets as complete; release replies that waited for them."""
        for source, call in zip(calls[::2], calls[1::2], strict=True):
            if worker.pending_calls.complete(source, call):
                for frame, fds in self._coalescing.skip(source, call):
                    self.deliver(frame, fds)

    def settle(self, worker: int, source: int, call: int) -> None:
        """Mark a call as complete because its caller already has the answer."""
        endpoint = self.endpoints.get(worker)
        if endpoint is not None:
            self._complete_calls(endpoint, [source, call])

    def _note_pending(self, caller: Endpoint, pending: list[list[Any]], answered: list[int]) -> None:
        """Record direct calls that a caller has reported as open or as answered."""
        # A caller reports direct calls with a delay (``direct_calls.REPORT_DELAY_S``), and the worker may have died in
        # the meantime. Its death failed the calls known at that moment; a call added afterwards would never be
        # answered. So such a call is refused immediately, and its method is listed among those open at the death.
        # tests/_client/test_direct_calls.py::test_a_death_before_the_daemon_has_heard_of_the_call_is_told_too
        now = clock.monotonic()
        for number, slot, call, method in pending:
            worker = self.endpoints.get(number) or self.replaced.get(number)
            if worker is None or worker.process is None or worker.exit_report is not None:
                self._refuse(caller.id, call, slot, worker, f"{method} (0.0 s)")
            else:
                worker.pending_calls.add(caller.id, call, slot, method, now)
        for number, call in zip(answered[::2], answered[1::2], strict=True):
            worker = self.endpoints.get(number)
            if worker is not None:
                worker.pending_calls.complete(caller.id, call)

    def _resume(self, source: Endpoint, frame: list[Any]) -> None:
        """Tell one side of a broken direct socket how many of its frames the other side has received."""
        if not all(type(field) is int for field in frame[3:]):
            raise FrameError(f"{source!r} sent a frame of kind {frame[0]} that makes no sense")
        peer = self.endpoints.get(frames.number_of(frame[3])) if frames.node_of(frame[3]) == self.node else None
        owner = frame[4]
        source.awaited_by.discard((frame[3], owner))
        if owner == source.id:
            source.resumed.add(frame[3])
        if peer is None or peer.exit_report is not None:
            self._answer_resume(frame[3], source.id, owner)
            return
        peer.awaited_by.add((source.id, owner))
        self.deliver(frame)

    def _answer_resume(self, gone: int, target: int, owner: int) -> None:
        # -1 means that the other process has ended, so nothing will be resent.
        self.deliver((frames.RESUME, 0, gone, target, owner, -1))

    def end_resumptions(self, gone: Endpoint) -> None:
        """Answer every process that waits for a dead endpoint to report received frames or to repeat lost answers."""
        awaited_by, gone.awaited_by = gone.awaited_by, set()
        for target, owner in awaited_by | {(caller, gone.id) for caller in gone.resumed}:
            self._answer_resume(gone.id, target, owner)

    def _release(self) -> None:
        self._release_timer = None
        for frame, fds in self._coalescing.release():
            self.deliver(frame, fds)

    def _deliver_together(self, answers: list[Answer]) -> None:
        target = answers[0][0][3]
        endpoint = self.endpoints.get(frames.number_of(target)) if frames.node_of(target) == self.node else None
        if len(answers) == 1 or endpoint is None or endpoint.connection is None:
            for frame, fds in answers:
                self.deliver(frame, fds)
        else:
            endpoint.connection.send_all(answers)

    def _send_to_node(self, node: int, frame: frames.Frame, fds: Sequence[int]) -> None:
        node_link = self.node_links.get(node)
        if node_link is not None and node_link.lost is None:
            if frame[0] == frames.REQUEST and frame[5] in _STATE_REQUESTS and (down := node_link.seconds_down):
                text = f"the link to {node_link.name} is down for {down:.0f} s"
                self.deliver(
                    (frames.ANSWER, 0, frames.endpoint(self.node, 0), frame[2], frame[4], False, ["LaunchError", text])
                )
            else:
                node_link.send(frame, fds)
            return
        close_fds(fds)
        if node_link is None:
            error, text = "LaunchError", f"there is no node {node} in this run"
        else:
            error, text = "NodeLost", str(NodeLost.from_facts(node_link.name, node, node_link.lost or ""))
        if frame[0] == frames.REQUEST:
            me = frames.endpoint(self.node, 0)
            self.deliver((frames.ANSWER, 0, me, frame[2], frame[4], False, [error, text]))
        elif frame[0] == frames.CALL:
            self._refuse_slots(frame, slots_of(frame[3]), Status.LOST, frames.pack([node, text]))

    def _route_call(self, frame: list[Any], fds: list[int]) -> None:
        kind, count, source, route, call, method, credit, body = frame
        now = clock.monotonic()
        targets, remote_hops = split_route(route, self.node, fds)
        local: list[tuple[Endpoint, int]] = []
        for number, slot in targets:
            endpoint = self.endpoints.get(number) or self.replaced.get(number)
            if endpoint is None or endpoint.process is None or endpoint.exit_report is not None:
                self._refuse(source, call, slot, endpoint)
            else:
                local.append((endpoint, slot))
        try:
            copies = duplicate_fds(fds, len(local) + len(remote_hops))
        except OSError as error:
            text = f"the daemon of node {self.node} cannot pass the arguments on: {error}{limit_met(error)}"
            slots = [slot for _, slot in local] + slots_of(remote_hops)
            self._refuse_slots(frame, slots, Status.UNKNOWN, frames.pack(text))
            return
        if len(local) > 1 and not credit:
            self._coalescing.expect(source, call, len(local))
        for endpoint, slot in local:
            endpoint.pending_calls.add(source, call, slot, method, now)
            endpoint.send((kind, count, source, slot, call, method, credit, body), copies.pop() if count else ())
        for hop in remote_hops:
            fds_of_hop = copies.pop() if count else ()
            self._send_to_node(hop[0], [kind, count, source, [hop], call, method, credit, body], fds_of_hop)

    def _route_message(self, frame: list[Any], fds: list[int]) -> None:
        """Deliver a message to every live target of its route; ``DeathWatch`` reports dead targets."""
        kind, count, source, route, facts, body = frame
        targets, remote_hops = split_route(route, self.node, fds)
        local: list[tuple[Endpoint, int]] = []
        for number, slot in targets:
            endpoint = self.endpoints.get(number)
            if endpoint is not None and endpoint.exchanges and endpoint.exit_report is None:
                local.append((endpoint, slot))
        try:
            copies = duplicate_fds(fds, len(local) + len(remote_hops))
        except OSError as error:
            count = 0
            body = f"the daemon of node {self.node} cannot pass the message on: {error}{limit_met(error)}"
        for endpoint, slot in local:
            endpoint.send((kind, count, source, slot, facts, body), copies.pop() if count else ())
        for hop in remote_hops:
            self._send_to_node(hop[0], [kind, count, source, [hop], facts, body], copies.pop() if count else ())

    def _refuse_slots(self, frame: frames.Frame, slots: list[int], status: Status, body: bytes) -> None:
        me = frames.endpoint(self.node, 0)
        for slot in slots:
            self.deliver((frames.REPLY, 0, me, frame[2], frame[4], slot, int(status), body))

    def _refuse(self, source: int, call: int, slot: int, endpoint: Endpoint | None, method: str = "") -> None:
        """Answer a call to a dead or unknown worker; ``method`` was running at its death, unknown to this daemon."""
        if endpoint is not None and endpoint.exit_report is not None:
            status, body = Status.DIED, endpoint.death_of(source, call, method)
        elif endpoint is not None and endpoint.root is not None:
            text = f"'{endpoint.name}' is a subprocess of a worker: it exchanges messages, and has no methods to call"
            status, body = Status.UNKNOWN, frames.pack(text)
        else:
            status, body = Status.UNKNOWN, frames.pack("the worker is gone: its group was closed")
        me = frames.endpoint(self.node, 0)
        self.deliver((frames.REPLY, 0, me, source, call, slot, int(status), body))

    def _route_signal(self, frame: list[Any]) -> None:
        """Forward a CANCEL, CREDIT or FAILED frame to every target of its route."""
        kind, _, source, route, *rest = frame
        if type(rest[0]) is not int or (kind == frames.CREDIT and type(rest[1]) is not int):
            raise FrameError(f"a frame of kind {kind} about call {rest[0]!r}")
        for hop in route:
            node, targets = parse_hop(hop)
            if node != self.node:
                self._send_to_node(node, [kind, 0, source, [hop], *rest], ())
                continue
            for index in range(0, len(targets), 2):
                endpoint = self.endpoints.get(targets[index])
                if endpoint is not None:
                    endpoint.send((kind, 0, source, targets[index + 1], *rest))

    # -- ends ---------------------------------------------------------------------------------------------------

    def fail_pending_calls(self, endpoint: Endpoint, report: Any, *, expected: bool) -> None:
        """Answer a dead worker's pending calls with its exit report, or with "closed" if the exit was expected."""
        endpoint.exit_report = frames.pack(report)
        me = frames.endpoint(self.node, 0)
        closed = frames.pack("its group was closed")

        def fail(source: int, call: int, slot: int) -> None:
            for frame, fds in self._coalescing.forget(source, call):
                self.deliver(frame, fds)
            status, body = Status.DIED, b""
            if expected:
                status, body = Status.UNKNOWN, closed
            else:
                body = endpoint.death_of(source, call)
            self.deliver((frames.REPLY, 0, me, source, call, slot, int(status), body))

        run_all(f"the calls of {endpoint!r}", (partial(fail, *call) for call in endpoint.pending_calls.fail_all()))
        self.end_resumptions(endpoint)
        if endpoint.connection is not None:
            endpoint.connection.close()
            # Free the connection's buffers, because a supervised rank's endpoint is kept.
            endpoint.connection = None

    def drop_caller(self, source: int) -> None:
        for _, fds in self._coalescing.drop(source):
            close_fds(fds)
        run_all(
            f"the calls by endpoint {source}",
            (
                partial(endpoint.send, (frames.CANCEL, 0, source, 0, call))
                for endpoint in self.endpoints.values()
                for call in endpoint.pending_calls.of_source(source)
            ),
        )

    def callers_on(self, node: int) -> set[int]:
        """Return the endpoints of a node that have open calls to workers of this node."""
        return {
            source
            for endpoint in self.endpoints.values()
            for source, _ in endpoint.pending_calls
            if frames.node_of(source) == node
        }

    def send_event(self, target: int, event: str, facts: Any) -> None:
        self.deliver((frames.EVENT, 0, frames.endpoint(self.node, 0), target, event, facts))

    def broadcast_event(self, event: str, facts: Any) -> None:
        for endpoint in self.endpoints.values():
            if endpoint.exit_report is None:
                self.send_event(endpoint.id, event, facts)

    def broadcast(self, frame: frames.Frame) -> None:
        for node_link in self.node_links.values():
            node_link.send(frame)
