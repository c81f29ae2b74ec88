"""Frame router of a daemon between local endpoints and other nodes; tracks pending calls, fails those of the dead.

The router reads headers and never bodies.  An *endpoint* is a local process with a socket (a driver or a worker); a
*neighbour* is another node's daemon.  A frame's source is taken from the connection that it came on, never from what
it says of itself.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from rlinf_async._core import clock, frames, operations
from rlinf_async._core.descriptors import limit_met
from rlinf_async._core.frames import FrameError, Status
from rlinf_async._core.operations import Answer as Answered, Operation
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.segment import close_fds, write_segment
from rlinf_async.errors import LaunchError, NodeLost

from .cleanup import run_all
from .endpoint import Endpoint
from .node_link import NodeLink
from .reply_coalescing import MAX_DELAY_S, Answer, ReplyCoalescing

logger = own_logger(__name__)

_INT: Final = frozenset({int})

_FOR_A_QUEUE: Final = frozenset({frames.PUT, frames.GET, frames.QUEUE})

_ABOUT_NOW: Final = frozenset(
    operation.__name__
    for operation in (
        operations.RequestProgress,
        operations.QueueState,
        operations.Inspect,
        operations.NodeDetails,
        operations.ScrapeNode,
    )
)
"""Requests about the present state of another node: they are not kept for one that cannot be reached now."""

_MAX_INLINE_BYTES: Final = 4 << 20
"""Bytes of a body that a daemon without a free descriptor passes on in a frame."""

_SIGNALS: Final = frozenset({frames.CANCEL, frames.CREDIT, frames.FAILED})

MAX_DIRECT_WORKERS: Final = 256
"""Workers of a node that answer past the daemon; each costs those who call it a file descriptor."""


class Router:
    """The tables of one node and the rules by which frames move between them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, node: int, on_request: Callable[[int, int, str, Any], None]
    ) -> None:
        self.node = node
        self._loop = loop
        self._gathering = ReplyCoalescing()
        self._release_timer: asyncio.TimerHandle | None = None
        self.endpoints: dict[int, Endpoint] = {}
        self.replaced: dict[int, Endpoint] = {}
        """Workers that have died and were started again as others: calls of them that come late are told so."""
        self.neighbours: dict[int, NodeLink] = {}
        self._on_request = on_request
        self.on_channel: Callable[[list[Any], list[int]], None]
        self._numbers = 0
        self._asked = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._asks_no_more = False
        """Of other daemons, to this one, by the number of the request."""

    def __repr__(self) -> str:
        return f"<Router node {self.node} [{len(self.endpoints)} endpoints, {len(self.neighbours)} neighbours]>"

    def new_endpoint(self, role: str) -> Endpoint:
        self._numbers += 1
        endpoint = Endpoint(self.node, self._numbers, role)
        self.endpoints[endpoint.number] = endpoint
        return endpoint

    def grant_direct_sockets(self, worker: Endpoint) -> bool:
        """Whether a new worker may hand out sockets: each process has one of every worker that it calls."""
        having = sum(1 for endpoint in self.endpoints.values() if endpoint.has_direct_sockets)
        worker.has_direct_sockets = having < MAX_DIRECT_WORKERS
        return worker.has_direct_sockets

    # -- frames from local processes ------------------------------------------------------------------------------

    def from_endpoint(self, source: Endpoint, frame: list[Any], fds: list[int]) -> None:
        """Moves a frame on.

        Raises:
            FrameError: it is not what it should be, and nothing of it has gone anywhere.
        """
        kind = frame[0]
        frame[2] = source.id
        if type(frame[-1]) is memoryview:
            fds = self._share(frame)
        if kind in _FOR_A_QUEUE:
            self.to_queue(frame, fds)
            return
        if kind in (frames.CALL, frames.REPLY, frames.MESSAGE) and not _is_sound(frame, fds):
            close_fds(fds)
            raise FrameError(f"{source!r} sent a frame of kind {kind} that makes no sense")
        if kind == frames.CALL:
            self._route_call(frame, fds)
        elif kind == frames.REPLY:
            slot = source.pending_calls.slot(frame[3], frame[4])
            if slot is None and frame[3] in source.resumed and type(frame[5]) is int:
                # It had answered past this daemon, on a socket that lost the answer, and said SETTLED since.  To drop
                # this as an answer to an unknown call would leave the caller waiting; only a worker with a broken
                # socket to this very caller may do so.
                # tests/test_broken_sockets.py::test_calls_outlive_their_socket_and_run_once_in_order
                self.deliver(frame, fds)
                return
            if slot is None:
                close_fds(fds)
                logger.warning("%r answered a call that it had not got", source)
                return
            frame[5] = slot  # its own, whatever it says
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
                self._to_neighbour(frame[3], frame, ())
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

    def from_neighbour(self, neighbour: NodeLink, frame: list[Any], fds: list[int]) -> None:
        if frames.node_of(frame[2]) != neighbour.node:
            close_fds(fds)
            logger.error("node %d sent a frame in the name of node %d", neighbour.node, frames.node_of(frame[2]))
            return
        kind = frame[0]
        if kind == frames.CALL:
            self._route_call(frame, fds)
        elif kind == frames.MESSAGE:
            self._route_message(frame, fds)
        elif kind in _FOR_A_QUEUE and frame[3] == frames.endpoint(self.node, 0):
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
        """What a process says to the daemon that has a channel's queue."""
        node = frames.node_of(frame[3])
        if frames.number_of(frame[3]) or not _may_be_queued(frame, fds):
            close_fds(fds)
            raise FrameError(f"endpoint {frame[2]:#x} sent a frame of kind {frame[0]} that makes no sense")
        if node == self.node:
            self.on_channel(frame, fds)
        else:
            self._to_neighbour(node, frame, fds)

    def deliver(self, frame: frames.Frame, fds: Sequence[int] = ()) -> None:
        """Sends a frame to the one endpoint that its fourth field names."""
        target = frame[3]
        node = frames.node_of(target)
        if node != self.node:
            self._to_neighbour(node, frame, fds)
            return
        endpoint = self.endpoints.get(frames.number_of(target))
        if endpoint is None:
            close_fds(fds)
            if frame[0] == frames.ANSWER and not frames.number_of(target):
                self._take_answer(frame)
            elif frame[0] == frames.EVENT and not frames.number_of(target):
                self.tell_all(frame[4], frame[5])
        elif frame[0] == frames.EVENT and frame[4] == "output":
            endpoint.send_lines(frame)
        else:
            endpoint.send(frame, fds)

    def request(self, node: int, operation: Operation[Any], number: int = 0) -> None:
        """Requests something of a daemon, which may be this one; the answer is ignored."""
        me = frames.endpoint(self.node, 0)
        name, fields = type(operation).__name__, vars(operation)
        if node == self.node:
            self._on_request(me, number, name, fields)
        else:
            self._to_neighbour(node, (frames.REQUEST, 0, me, node, number, name, fields), ())

    def ask(self, node: int, operation: Operation[Answered]) -> asyncio.Future[Answered]:
        """As ``request``, with its answer, or a LaunchError with what was said instead; cancel it to wait no longer."""
        answer: asyncio.Future[Answered] = self._loop.create_future()
        number = next(self._asked)
        self._answers[number] = answer
        answer.add_done_callback(lambda done: self._answers.pop(number))
        if self._asks_no_more:
            answer.cancel()
        else:
            self.request(node, operation, number)
        return answer

    def end_questions(self) -> None:
        """No answer comes any more: whoever waits for one is cancelled, now and later."""
        self._asks_no_more = True
        for answer in list(self._answers.values()):
            answer.cancel()

    def _take_answer(self, frame: frames.Frame) -> None:
        answer = self._answers.get(frame[4])
        if answer is not None and not answer.done():
            if frame[5]:
                answer.set_result(frame[6])
            else:
                answer.set_exception(LaunchError(str(frame[6][1])))

    def _gather(self, frame: list[Any], fds: list[int]) -> None:
        answers = self._gathering.answer(frame, fds)
        if answers:
            self._deliver_together(answers)
        elif self._release_timer is None:
            self._release_timer = self._loop.call_later(MAX_DELAY_S, self._release)

    def _complete_calls(self, worker: Endpoint, calls: list[int]) -> None:
        """Calls that a worker has answered past the daemon."""
        for source, call in zip(calls[::2], calls[1::2], strict=True):
            if worker.pending_calls.complete(source, call):
                for frame, fds in self._gathering.skip(source, call):
                    self.deliver(frame, fds)

    def settle(self, worker: int, source: int, call: int) -> None:
        """A call that a caller has the answer of."""
        endpoint = self.endpoints.get(worker)
        if endpoint is not None:
            self._complete_calls(endpoint, [source, call])

    def _note_pending(self, caller: Endpoint, pending: list[list[Any]], answered: list[int]) -> None:
        """Calls that went past the daemon: they are open still, or have been answered."""
        # The caller tells of direct calls only after a while (``direct_calls.REPORT_DELAY_S``), and the worker may have
        # died in between.  Its exit report has answered the calls that were known then; one that was added now would
        # never be answered.  So it is refused at once, with its method among those that were open at the death.
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

    def _share(self, frame: list[Any]) -> list[int]:
        """Has a content that came as bytes, when no descriptor was free here, ride on its frame after all."""
        memory = frame[-1]
        try:
            fds = [write_segment([memory], len(memory))]
        except (OSError, MemoryError) as error:
            if len(memory) <= _MAX_INLINE_BYTES:
                frame[-1] = bytes(memory)
            else:
                frame[-1] = f"the daemon of node {self.node} cannot pass it on: {error}{limit_met(error)}"
            return []
        frame[1], frame[-1] = 1, len(memory)
        return fds

    def _resume(self, source: Endpoint, frame: list[Any]) -> None:
        """A direct socket has ended: its other end is told, or has told this one, how much of it has come.

        Raises:
            FrameError: it makes no sense.
        """
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
        """For a process that has ended."""
        self.deliver((frames.RESUME, 0, gone, target, owner, -1))

    def end_resumptions(self, gone: Endpoint) -> None:
        """A process has ended: no other one waits any longer to hear from it of a socket, or for what one had lost."""
        awaited_by, gone.awaited_by = gone.awaited_by, set()
        for target, owner in awaited_by | {(caller, gone.id) for caller in gone.resumed}:
            self._answer_resume(gone.id, target, owner)

    def _release(self) -> None:
        self._release_timer = None
        for frame, fds in self._gathering.release():
            self.deliver(frame, fds)

    def _deliver_together(self, answers: list[Answer]) -> None:
        """The answers to one call, in one write."""
        target = answers[0][0][3]
        endpoint = self.endpoints.get(frames.number_of(target)) if frames.node_of(target) == self.node else None
        if len(answers) == 1 or endpoint is None or endpoint.connection is None:
            for frame, fds in answers:
                self.deliver(frame, fds)
        else:
            endpoint.connection.send_all(answers)

    def _to_neighbour(self, node: int, frame: frames.Frame, fds: Sequence[int]) -> None:
        neighbour = self.neighbours.get(node)
        if neighbour is not None and neighbour.lost is None:
            if frame[0] == frames.REQUEST and frame[5] in _ABOUT_NOW and (down := neighbour.seconds_down):
                text = f"the link to {neighbour.name} is down for {down:.0f} s"
                self.deliver(
                    (frames.ANSWER, 0, frames.endpoint(self.node, 0), frame[2], frame[4], False, ["LaunchError", text])
                )
            else:
                neighbour.send(frame, fds)
            return
        close_fds(fds)
        if neighbour is None:
            error, text = "LaunchError", f"there is no node {node} in this run"
        else:
            error, text = "NodeLost", str(NodeLost.from_facts(neighbour.name, node, neighbour.lost or ""))
        if frame[0] == frames.REQUEST:
            me = frames.endpoint(self.node, 0)
            self.deliver((frames.ANSWER, 0, me, frame[2], frame[4], False, [error, text]))
        elif frame[0] == frames.CALL:
            self._refuse_slots(frame, _slots(frame[3]), Status.LOST, frames.pack([node, text]))

    def _split(self, route: Any, fds: list[int]) -> tuple[list[tuple[int, int]], list[list[Any]]]:
        """The targets of a route on this node, number and slot, and the hops to other nodes.

        Raises:
            FrameError: it is none; the descriptors of its frame are closed.
        """
        mine: list[tuple[int, int]] = []
        elsewhere: list[list[Any]] = []
        try:
            if type(route) is not list:
                raise FrameError(f"a route that is {route!r}")
            for hop in route:
                node, targets = _hop(hop)
                if node == self.node:
                    mine.extend(zip(targets[::2], targets[1::2], strict=True))
                else:
                    elsewhere.append(hop)
        except FrameError:
            close_fds(fds)
            raise
        return mine, elsewhere

    def _route_call(self, frame: list[Any], fds: list[int]) -> None:
        kind, count, source, route, call, method, credit, body = frame
        now = clock.monotonic()
        targets, elsewhere = self._split(route, fds)
        mine: list[tuple[Endpoint, int]] = []
        for number, slot in targets:
            endpoint = self.endpoints.get(number) or self.replaced.get(number)
            if endpoint is None or endpoint.process is None or endpoint.exit_report is not None:
                self._refuse(source, call, slot, endpoint)
            else:
                mine.append((endpoint, slot))
        try:
            copies = _duplicate(fds, len(mine) + len(elsewhere))
        except OSError as error:
            text = f"the daemon of node {self.node} cannot pass the arguments on: {error}{limit_met(error)}"
            slots = [slot for _, slot in mine] + _slots(elsewhere)
            self._refuse_slots(frame, slots, Status.UNKNOWN, frames.pack(text))
            return
        if len(mine) > 1 and not credit:
            self._gathering.expect(source, call, len(mine))
        for endpoint, slot in mine:
            endpoint.pending_calls.add(source, call, slot, method, now)
            endpoint.send((kind, count, source, slot, call, method, credit, body), copies.pop() if count else ())
        for hop in elsewhere:
            fds_of_hop = copies.pop() if count else ()
            self._to_neighbour(hop[0], [kind, count, source, [hop], call, method, credit, body], fds_of_hop)

    def _route_message(self, frame: list[Any], fds: list[int]) -> None:
        """To every target of its route; those that have ended are left out, and who watches them is told of that."""
        kind, count, source, route, facts, body = frame
        targets, elsewhere = self._split(route, fds)
        mine: list[tuple[Endpoint, int]] = []
        for number, slot in targets:
            endpoint = self.endpoints.get(number)
            if endpoint is not None and endpoint.exchanges and endpoint.exit_report is None:
                mine.append((endpoint, slot))
        try:
            copies = _duplicate(fds, len(mine) + len(elsewhere))
        except OSError as error:
            count = 0
            body = f"the daemon of node {self.node} cannot pass the message on: {error}{limit_met(error)}"
        for endpoint, slot in mine:
            endpoint.send((kind, count, source, slot, facts, body), copies.pop() if count else ())
        for hop in elsewhere:
            self._to_neighbour(hop[0], [kind, count, source, [hop], facts, body], copies.pop() if count else ())

    def _refuse_slots(self, frame: frames.Frame, slots: list[int], status: Status, body: bytes) -> None:
        me = frames.endpoint(self.node, 0)
        for slot in slots:
            self.deliver((frames.REPLY, 0, me, frame[2], frame[4], slot, int(status), body))

    def _refuse(self, source: int, call: int, slot: int, endpoint: Endpoint | None, method: str = "") -> None:
        """Answers for a worker that is no more; ``method`` was open when it died, though it was not known here."""
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
        """A CANCEL, CREDIT or FAILED: to every target of its route.

        Raises:
            FrameError: it makes no sense, and would harm those that it is for.
        """
        kind, _, source, route, *rest = frame
        if type(rest[0]) is not int or (kind == frames.CREDIT and type(rest[1]) is not int):
            raise FrameError(f"a frame of kind {kind} about call {rest[0]!r}")
        for hop in route:
            node, targets = _hop(hop)
            if node != self.node:
                self._to_neighbour(node, [kind, 0, source, [hop], *rest], ())
                continue
            for index in range(0, len(targets), 2):
                endpoint = self.endpoints.get(targets[index])
                if endpoint is not None:
                    endpoint.send((kind, 0, source, targets[index + 1], *rest))

    # -- ends ---------------------------------------------------------------------------------------------------

    def fail_pending_calls(self, endpoint: Endpoint, report: Any, *, expected: bool) -> None:
        """A worker is dead: everybody who waits for an answer of it learns why.

        Args:
            expected: its group is being closed; then the report is only that.
        """
        endpoint.exit_report = frames.pack(report)
        me = frames.endpoint(self.node, 0)
        closed = frames.pack("its group was closed")

        def fail(source: int, call: int, slot: int) -> None:
            for frame, fds in self._gathering.forget(source, call):
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
            endpoint.connection = None  # with its buffers: the endpoint of a rank that comes back is kept for long

    def drop_caller(self, source: int) -> None:
        """Cancels the calls of an endpoint that is gone, and drops their answers."""
        for _, fds in self._gathering.drop(source):
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
        """Endpoints of a node that have calls open on workers of this one."""
        return {
            source
            for endpoint in self.endpoints.values()
            for source, _ in endpoint.pending_calls
            if frames.node_of(source) == node
        }

    def tell(self, target: int, what: str, facts: Any) -> None:
        """Sends an event to one endpoint, wherever it lives."""
        self.deliver((frames.EVENT, 0, frames.endpoint(self.node, 0), target, what, facts))

    def tell_all(self, what: str, facts: Any) -> None:
        """Sends an event to every process of this node."""
        for endpoint in self.endpoints.values():
            if endpoint.exit_report is None:
                self.tell(endpoint.id, what, facts)

    def broadcast(self, frame: frames.Frame) -> None:
        """Sends a frame to every other daemon."""
        for neighbour in self.neighbours.values():
            neighbour.send(frame)


def _hop(hop: Any) -> tuple[int, list[int]]:
    """A part of a route, which may go on to another node.

    Raises:
        FrameError: it is none.
    """
    is_one = type(hop) is list and len(hop) == 2 and type(hop[0]) is int and type(hop[1]) is list
    if not is_one or len(hop[1]) % 2 or not set(map(type, hop[1])) <= _INT:
        raise FrameError(f"a route with {hop!r}")
    return hop[0], hop[1]


def _is_sound(frame: list[Any], fds: list[int]) -> bool:
    """Whether a CALL or REPLY may go to other processes: what they cannot read would do harm there, and not here."""
    body = frame[-1]
    if frame[0] == frames.CALL and not frames.is_call_sound(frame):
        return False
    if not fds:
        return type(body) is bytes or type(body) is str
    return _is_sealed(body, fds)


def _may_be_queued(frame: list[Any], fds: list[int]) -> bool:
    """Whether what is said to a queue may go to other processes; a list in the place of a body means another node's.

    A text in the place of a body says why an item's content was lost.
    """
    if frame[0] != frames.PUT:
        return not fds
    return _is_sealed(frame[-1], fds) if fds else type(frame[-1]) in (bytes, int, str)


def _is_sealed(body: Any, fds: list[int]) -> bool:
    return type(body) is int and len(fds) == 1 and _holds(fds[0], body)


def _holds(fd: int, size: int) -> bool:
    """Whether it is sealed memory of at least that size."""
    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK) and 0 <= size <= os.fstat(fd).st_size
    except OSError:
        return False


def _duplicate(fds: list[int], copies: int) -> list[list[int]]:
    """One set of descriptors per receiver; the originals are used up, also where this raises OSError."""
    if not fds:
        return []
    if not copies:
        close_fds(fds)
        return []
    sets = [fds]
    try:
        for _ in range(copies - 1):
            sets.append([])
            for fd in fds:
                sets[-1].append(os.dup(fd))
    except OSError:
        for copy in sets:
            close_fds(copy)
        raise
    return sets


def _slots(route: list[list[Any]]) -> list[int]:
    """The slots of every target of a route."""
    return [slot for _, targets in route for slot in targets[1::2]]
