"""``NodeClient``: a process's connection to its node's daemon; sends calls and requests, dispatches incoming frames.

Drivers and workers use their daemons in the same way: they call workers, send requests to daemons, and receive events.
A worker also receives calls, which it hands to its runtime (the ``inbox``).

All frames are handled on the client's own loop: the user's loop in a driver inside asyncio, a background thread's loop
in a plain script, the socket thread's loop in a worker. A worker's idle main thread handles frames itself, which saves
a thread switch; handlers still run one at a time, under a lock. A handler must therefore reach a loop only through
``call_soon_threadsafe``. ``call``, ``cancel``, ``credit`` and ``request`` may be used from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import socket
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from rlinf_async._client.direct_calls import DirectCalls
from rlinf_async._client.events import Events, Listener
from rlinf_async._client.loop_thread import LoopThread
from rlinf_async._client.reply_handler import NOWHERE, CallReceiver, Receiver, ReplyHandler
from rlinf_async._client.requests import OWN_NODE, DaemonRequest, Requests, error_of
from rlinf_async._client.tasks import Task, Tasks
from rlinf_async._core import codec, failures, frames, operations, process
from rlinf_async._core.frames import Status
from rlinf_async._core.giving_back import GivingBack
from rlinf_async._core.operations import Answer, Operation
from rlinf_async._core.payload import Body, open_body
from rlinf_async._core.pool import pool
from rlinf_async._core.segment import close_fds, copy_fds
from rlinf_async._core.taken_page import TakenPage, Takings
from rlinf_async._inspection.state.run_report import Activity
from rlinf_async._waits import loop_watch
from rlinf_async._waits.unobserved_errors import UnobservedErrors
from rlinf_async._wire.direct_sockets import DirectSockets
from rlinf_async._wire.reading.idle_reader import IdleReader, ReadArbiter
from rlinf_async._wire.unix import Connection
from rlinf_async.errors import ClosedError, ForkedProcessError, NodeLost
from rlinf_async.work import Work

codec.extend("torch", "rlinf_async._transports.tensors")

_TOLD_BY_DAEMONS: Final = frozenset({int(Status.DIED), int(Status.UNKNOWN), int(Status.LOST)})


# This class, the façade of a process's connection, is not split, although it has more than 30 methods. Requests, tasks,
# events and direct calls have separate classes; open calls stay here, because every kind of frame may end one.
class NodeClient:
    """The client of one node daemon.

    Attributes:
        endpoint: this process's id in the run; 0 until ``ready`` is done.
        pid: id of the process that created this client; in forked children the client is closed.
        node: rank of this process's node.
        welcome: the daemon's description of the run: its id, its nodes, this process's place.
        ready: work that is settled once the daemon has answered.
        events: listeners for daemons' events.
        direct_sockets: sockets created for this process by workers of its node.
        receivers: maps each kind of frame that the client itself does not handle to its receiver.
        restarts: descriptions of the rank restarts in progress.
        unobserved: errors of this client's calls that have not been awaited.
        user_loop: ``loop`` if it is the user's; None if a thread of the framework runs it.
        on_ended: called once, with the client, when it can no longer send.
        unsent: callbacks that send data held back until the end of a loop's turn.
        takings: items that this process took out of queues and may not have reported to daemons yet.
        giving_back: items that this process is returning to queues; a worker's answers wait until this is confirmed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, inbox: CallReceiver | None = None) -> None:
        self.loop = loop
        self.pid = process.pid
        self.endpoint = 0
        self.node = -1
        self.welcome: dict[str, Any] = {}
        self.ready: Work[dict[str, Any]] = Work()
        self.lost_nodes: dict[int, NodeLost] = {}
        self.receivers: dict[int, Receiver] = {}
        self.unsent: dict[Callable[[], None], None] = {}
        self.takings = Takings(self.later)
        self.giving_back = GivingBack()
        self._inbox = inbox
        self._ids = itertools.count(1)
        self._calls: dict[int, ReplyHandler] = {}
        self._requests = Requests()
        self._connection: Connection | None = None
        self.direct_connection: Callable[[int], Connection | None] = lambda endpoint: None
        """Function that returns this worker's socket to a process on its node, or None if there is none."""
        self._arbiter = ReadArbiter()
        self.direct_sockets = DirectSockets(self._send_resume_of_caller, self._relay_call, self._no_longer_direct)
        self._direct_calls = DirectCalls(self.direct_sockets, self._calls, self._arbiter.lock, self.send, self.later)
        self.own_direct_sockets: DirectSockets | None = None
        self.user_loop: asyncio.AbstractEventLoop | None = None
        self._idle: IdleReader | None = None
        self._closed: Exception | None = None
        self._tasks = Tasks(loop, self._on_loop)
        self.events = Events()
        self.restarts: dict[str, Callable[[], Activity]] = {}
        self.unobserved = UnobservedErrors(self._send_operation if inbox is None else None, self.later)
        self.on_ended: Callable[[NodeClient], None] = lambda client: None
        _clients[self] = None

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<NodeClient node {self.node} {state} [{len(self._calls)} calls, {len(self._requests)} requests open]>"

    def attach(self, sock: socket.socket, facts: dict[str, Any]) -> None:
        """Take over the socket and send HELLO. Call this on the loop's own thread."""
        self._connect(sock, facts).open()

    def attach_shared(self, sock: socket.socket, facts: dict[str, Any], idle: IdleReader) -> None:
        """Attach on another thread, which reads while idle. Call this before the client's own loop runs."""
        self._idle = idle
        connection = self._connect(sock, facts)
        connection.share(idle)
        self.loop.call_soon(connection.open)

    def connect_directly(self, sock: socket.socket, **callbacks: Any) -> Connection:
        """Make the threads that read the daemon's socket also read a socket to another process on this node."""
        connection = Connection(
            sock, self.loop, arbiter=self._arbiter, on_arrival=self._read_daemon_first, resumable=True, **callbacks
        )
        if self._idle is not None:
            connection.share(self._idle)
        self._on_loop(connection.open)
        return connection

    def _connect(self, sock: socket.socket, facts: dict[str, Any]) -> Connection:
        on_batch = self._inbox.on_batch if self._inbox is not None else None
        self._connection = Connection(
            sock,
            self.loop,
            on_frame=self._on_frame,
            on_closed=self._on_closed,
            on_batch=on_batch,
            arbiter=self._arbiter,
        )
        self._connection.send((frames.HELLO, 0, 0, facts))
        return self._connection

    def listen(self, what: str, listener: Listener) -> None:
        self.events.listen(what, listener)

    # -- calls --------------------------------------------------------------------------------------------------

    def call(
        self,
        handler: ReplyHandler,
        route_to: Callable[[Sequence[int]], list[list[Any]]],
        method: str,
        body: bytes | int,
        fds: Sequence[int],
        credit: int = 0,
        held: Sequence[int] = (),
    ) -> None:
        """Send a call to every target of the handler except those in ``held`` slots; the handler gets the answers.

        Args:
            route_to: returns the route to all targets, for a call that the daemon relays to all of them.
        """
        call, targets = self._begin(handler, held)
        sockets, rest = self._direct_calls.open(call, targets, method)
        if held:
            rest = [slot for slot in rest if targets[slot] != NOWHERE]
        try:
            if fds:
                self._send_copies(sockets, fds, (call, method, credit, body))
            else:
                for slot, connection in sockets:
                    connection.send((frames.CALL, 0, 0, slot, call, method, credit, body))
            if rest:
                route = frames.route_to(targets, rest) if sockets or held else route_to(targets)
                self.send((frames.CALL, len(fds), self.endpoint, route, call, method, credit, body), fds)
            elif fds:
                close_fds(fds)
        except BaseException:
            self._calls.pop(call, None)  # another thread may have ended the client, and with it the call
            self._direct_calls.ended(call)
            raise
        self._departed(call, handler)

    def _begin(self, handler: ReplyHandler, held: Sequence[int]) -> tuple[int, Sequence[int]]:
        call = next(self._ids)
        targets = handler._begin(call)
        if held:
            targets = handler._targets = [*targets]
            for slot in held:
                targets[slot] = NOWHERE
        self._calls[call] = handler
        return call, targets

    @staticmethod
    def _send_copies(sockets: Sequence[tuple[int, Connection]], fds: Sequence[int], fields: tuple[Any, ...]) -> None:
        """Send a call with copies of its descriptors.

        Raises:
            OSError: too few descriptors are available; ``fds`` are closed.
        """
        count = len(fds)
        try:
            # Make all copies before anything is sent; otherwise some ranks would run a call that others never get.
            copies = copy_fds([*fds] * len(sockets))
        except BaseException:
            close_fds(fds)
            raise
        for place, (slot, connection) in enumerate(sockets):
            connection.send((frames.CALL, count, 0, slot, *fields), copies[place * count : (place + 1) * count])

    def call_each(
        self,
        handler: ReplyHandler,
        method: str,
        bodies: Sequence[tuple[bytes | int, Sequence[int]]],
        credit: int = 0,
        held: Sequence[int] = (),
    ) -> None:
        call, targets = self._begin(handler, held)
        sockets, rest = self._direct_calls.open(call, targets, method)
        for slot, connection in sockets:
            body, fds = bodies[slot]
            connection.send((frames.CALL, len(fds), 0, slot, call, method, credit, body), fds)
        for slot in rest:
            if targets[slot] == NOWHERE:
                continue
            body, fds = bodies[slot]
            route = frames.route_to(targets, [slot])
            self.send((frames.CALL, len(fds), self.endpoint, route, call, method, credit, body), fds, later=True)
        self._departed(call, handler)

    def _departed(self, call: int, handler: ReplyHandler) -> None:
        handler._mark_departed()
        if self._closed is not None or self.lost_nodes:
            try:
                self._on_loop(lambda: self._fail_hopeless(call, handler))
            except ClosedError:  # the loop is closed and handles no more answers
                self._fail_hopeless(call, handler)

    def _fail_hopeless(self, call: int, handler: ReplyHandler) -> None:
        if self._closed is not None:
            self._lose(call, handler, str(self._closed))
        for node, lost in list(self.lost_nodes.copy().items()):
            self._lose(call, handler, str(lost), node)

    def _lose(self, call: int, handler: ReplyHandler, reason: str, node: int | None = None) -> None:
        """Fail the slots of a call that can no longer be answered: all of them, or only those of one node."""
        for slot, target in enumerate(handler._targets):
            at = frames.node_of(target)
            if node is None or at == node:
                self._answer(call, slot, Status.LOST, frames.pack([at, reason]))

    def call_again(
        self,
        call: int,
        targets: Sequence[int],
        slot: int,
        method: str,
        body: bytes | int,
        fds: Sequence[int],
        credit: int = 0,
    ) -> None:
        """Send an open call to the process that replaces a dead one."""
        connection = self._direct_calls.open_again(call, targets[slot], method)
        if connection is not None:
            connection.send((frames.CALL, len(fds), 0, slot, call, method, credit, body), fds)
            return
        route = frames.route_to(targets, [slot])
        self.send((frames.CALL, len(fds), self.endpoint, route, call, method, credit, body), fds)

    def hand_over(self, call: int, handler: ReplyHandler) -> bool:
        """Let another handler receive an open call's answers. Return False if the call has been answered."""
        with self._arbiter.lock:
            if call not in self._calls:
                return False
            self._calls[call] = handler
            return True

    def answer_for(self, call: int, slot: int, status: Status, body: bytes) -> None:
        """Answer an open call, on the loop, in place of a process that has ended."""
        self.later(0, lambda: self._answer(call, slot, status, body))

    def cancel(self, call: int, targets: Sequence[int]) -> None:
        self._signal(frames.CANCEL, targets, call)

    def send_failure(self, call: int, targets: Sequence[int], facts: dict[str, Any]) -> None:
        """Notify an open call's targets that another rank of their group has failed."""
        self._signal(frames.FAILED, targets, call, facts)

    def _signal(self, kind: int, targets: Sequence[int], call: int, *facts: Any) -> None:
        direct, relayed = self._direct_calls.split(call, targets)
        for connection in direct:
            connection.send((kind, 0, 0, 0, call, *facts))
        if relayed:
            self._direct_calls.note_signal(call, relayed)
            self.send((kind, 0, self.endpoint, frames.route_to(relayed), call, *facts))

    def credit(self, call: int, target: int, count: int) -> None:
        if call not in self._calls:
            return
        direct, relayed = self._direct_calls.split(call, [target])
        for connection in direct:
            connection.send((frames.CREDIT, 0, 0, 0, call, count))
        if relayed:
            self.send((frames.CREDIT, 0, self.endpoint, frames.route_to(relayed), call, count), later=True)

    # -- requests -----------------------------------------------------------------------------------------------

    def request(self, operation: Operation[Answer], *, node: int = OWN_NODE, what: str = "") -> DaemonRequest[Answer]:
        """Request an operation of a node's daemon; ``what`` describes it in error messages."""
        target = self.node if node == OWN_NODE else node
        request = self._requests.begin(DaemonRequest(self, next(self._ids), operation, target, what))
        error = self._closed or self.lost_nodes.get(target)
        if error is None and self.loop.is_closed():
            error = loop_watch.closed(self.loop, request._describe())
        if error is not None:
            self._requests.refuse(request, error)
        else:
            try:
                self._send_request(target, request.number, operation)
            except Exception as failure:  # a value cannot be packed
                self._requests.refuse(request, failure)
                raise
        return request

    def _send_request(self, node: int, number: int, operation: Operation[Any]) -> None:
        self.send((frames.REQUEST, 0, self.endpoint, node, number, type(operation).__name__, vars(operation)))

    def _send_operation(self, operation: Operation[Any]) -> None:
        self._send_request(self.node, next(self._ids), operation)

    # -- tasks --------------------------------------------------------------------------------------------------

    def run(
        self, coroutine: Coroutine[Any, Any, Any], *, what: str = "an operation", abandonable: bool = False
    ) -> Task:
        """Run a coroutine on the client's loop, from any thread; ``settle_tasks`` cancels it.

        Args:
            what: description for error messages.
            abandonable: True to cancel the coroutine together with its last waiter.

        Raises:
            ClosedError: the loop is closed.
        """
        task = self._tasks.run(coroutine, what, abandonable)
        task._loop = self.user_loop
        return task

    async def settle_tasks(self) -> None:
        await self._tasks.settle()

    def end_loop(self, thread: LoopThread) -> None:
        """Stop the loop that ``thread`` runs, and block until it has stopped. Operations started from now on fail."""
        self._tasks.start_no_more()
        thread.stop(self.settle_tasks)
        self._tasks.loop_ended()

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        with contextlib.suppress(ClosedError, ForkedProcessError):
            self._on_loop(lambda: self.loop.call_later(seconds, callback))

    # -- the wire -----------------------------------------------------------------------------------------------

    def send(
        self,
        frame: frames.Frame,
        fds: Sequence[int] = (),
        *,
        later: bool = False,
        hold: bool = False,
        now: bool = False,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Send a frame unchanged, from any thread. The frame is dropped if the client is closed.

        Args:
            hold: send the frame together with the next frame that is not held.
            now: send the frame immediately, before the end of this turn of the loop.
            on_sent: called, on any thread, once the kernel has the whole frame, so that it will reach the daemon.
        """
        if self._connection is None or self._closed is not None:
            close_fds(fds)
            if fds and _all_closed():
                # Free the memory of the frame's content, which the caller allocated while the client was still open.
                pool.close()
            return
        self._connection.send(frame, fds, later=later, hold=hold, now=now, on_sent=on_sent)

    def _on_loop(self, callback: Callable[[], object]) -> None:
        if self.pid != process.pid:
            raise process.forked("this cluster", self.pid)
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if self.user_loop is None:
                raise ClosedError("the cluster is closed") from None
            raise loop_watch.closed(self.loop, "something was to be done there") from None

    def _on_frame(self, frame: list[Any], fds: list[int]) -> None:
        kind = frame[0]
        if kind == frames.REPLY:
            # The daemon may report a death before this process has read the worker's last answer on its own socket. An
            # answered call must not fail, so first read everything in that socket. tests/test_failures.py::
            # test_the_last_answer_of_a_worker_that_dies_at_once_is_not_lost
            if frame[6] in _TOLD_BY_DAEMONS:
                self._drain_callee(frame[4], frame[5])
            self._on_reply(self._calls.get(frame[4]), frame, fds)
        elif kind in self.receivers:
            self.receivers[kind].on_frame(frame, fds)
        elif kind == frames.DIRECT:
            self._accept_direct(frame[2], fds)
        elif kind == frames.RESUME:
            table = self.own_direct_sockets if frame[4] == self.endpoint else self.direct_sockets
            if table is not None:
                table.resume(frame[2], frame[5])
        elif kind == frames.ANSWER:
            self._requests.answer(frame[4], frame[5], frame[6])
        elif kind == frames.EVENT:
            if frame[4] == "node_lost":
                self._on_node_lost(frame[5])
            elif frame[4] == "check_calls":
                self._check_calls(frame[5])
            elif frame[4] == "refused":
                self._end(error_of(frame[5]["error"]))
            self.events.announce(frame[4], frame[5])
        elif kind == frames.HELLO:
            self.welcome = frame[3]
            self.takings.page = TakenPage.of(fds)
            self.endpoint, self.node = frame[3]["endpoint"], frame[3]["node"]
            for lost in frame[3].get("lost", ()):
                self._on_node_lost(lost)
            self.events.in_debugger.update(frame[3].get("in_debugger", ()))
            self.ready._settle(frame[3])
        elif self._inbox is not None:
            self._inbox.on_frame(frame, fds)
        else:
            close_fds(fds)

    # -- direct sockets of workers ------------------------------------------------------------------------------

    def _accept_direct(self, source: int, fds: list[int]) -> None:
        if not fds:  # this process had no free descriptor for the socket
            self.direct_sockets.lost(source)
            return
        connection = self.connect_directly(
            socket.socket(fileno=fds.pop()),
            on_frame=functools.partial(self._on_direct, source),
            on_closed=lambda reason: self.direct_sockets.broke(source),
        )
        self.direct_sockets.add(source, connection, self.own_direct_sockets)

    def send_resume(self, peer: int, owner: int, received: int) -> None:
        """Notify the other end of a direct socket that this process has stopped reading."""
        self.send((frames.RESUME, 0, self.endpoint, peer, owner, received))

    def _send_resume_of_caller(self, worker: int, received: int) -> None:
        # Report the calls first, then send the count: as soon as the worker has the count, it relays the socket's lost
        # answers, and the daemon drops answers to unknown calls. tests/test_broken_sockets.py::
        # test_calls_outlive_their_socket_and_run_once_in_order
        self._direct_calls.report()
        self.send_resume(worker, worker, received)

    def _relay_call(self, worker: int, frame: list[Any], fds: Sequence[int]) -> None:
        frame[2], frame[3] = self.endpoint, [[self.node, [frames.number_of(worker), frame[3]]]]
        if frame[0] == frames.CALL:
            self._direct_calls.relays(worker, frame[4])
        self.send(frame, fds)

    def _no_longer_direct(self, worker: int, connection: Connection | None, has_ended: bool) -> None:
        if has_ended:
            self._direct_calls.forget(worker)
            self._direct_calls.report_all(worker)

    def _on_direct(self, source: int, frame: list[Any], fds: list[int]) -> None:
        """Handle a worker's frame on a direct socket: an answer to a call sent to the worker, or a message."""
        if frame[0] == frames.MESSAGE:
            frame[2] = source
            self.receivers[frames.MESSAGE].on_frame(frame, fds)
            return
        handler = self._calls.get(frame[4]) if frame[0] == frames.REPLY else None
        if handler is None or frame[6] in _TOLD_BY_DAEMONS or handler._targets[frame[5]] != source:
            close_fds(fds)
        else:
            self._on_reply(handler, frame, fds)

    def _on_reply(self, handler: ReplyHandler | None, frame: list[Any], fds: list[int]) -> None:
        _, _, _, _, call, slot, status, body = frame
        try:
            if fds or type(body) is not bytes:
                body = open_body(body, fds)
        except Exception as error:  # mapping may fail for lack of memory or descriptors
            status, body = int(Status.ERROR), failures.pack(failures.capture(error, {"node": "this process"}))
        if handler is not None:
            self._answer_by(handler, call, slot, status, body)

    def _read_daemon_first(self) -> None:
        """Read the daemon's socket first, because its frames were sent before those pending on the direct socket."""
        if self._connection is not None and not self._connection.reader.is_handling:
            self._connection.drain()

    def drain_direct(self, endpoint: int) -> None:
        """Read a dead worker's remaining frames from its own socket. Call this where frames are handled."""
        self.direct_sockets.drain(endpoint)

    def _drain_callee(self, call: int, slot: int) -> None:
        handler = self._calls.get(call)
        if handler is not None:
            self.direct_sockets.drain(handler._targets[slot])

    def _answer(self, call: int, slot: int, status: int, body: Body) -> None:
        if (handler := self._calls.get(call)) is not None:
            self._answer_by(handler, call, slot, status, body)

    def _answer_by(self, handler: ReplyHandler, call: int, slot: int, status: int, body: Body) -> None:
        if status in frames.FINAL:
            self._direct_calls.answered(call, handler._targets[slot])
        if handler._answer(slot, status, body):
            self._calls.pop(call, None)
            self._direct_calls.ended(call)

    def _check_calls(self, facts: dict[str, Any]) -> None:
        """Tell the daemon which of the calls that it is about to list as open have been answered."""
        open_on: dict[int, set[int]] = {}
        # Also count answers that are still in a worker's own socket, because the worker may have died in the meantime.
        for number in {number for number, _ in facts["calls"]}:
            self.direct_sockets.drain(frames.endpoint(self.node, number))
        self._direct_calls.report()
        for call in {call for _, call in facts["calls"]}:
            handler = self._calls.get(call)
            open_on[call] = set() if handler is None else {handler._targets[slot] for slot in handler._unanswered()}
        finished = [pair for pair in facts["calls"] if frames.endpoint(self.node, pair[0]) not in open_on[pair[1]]]
        self._send_operation(operations.CallsChecked(facts["check"], finished))

    def _on_node_lost(self, facts: dict[str, Any]) -> None:
        node = facts["node"]
        error = NodeLost.from_facts(facts["name"], node, facts["reason"])
        self.lost_nodes[node] = error
        for call, handler in list(self._calls.copy().items()):
            self._lose(call, handler, str(error), node)
        self._requests.fail(error, node=node)

    def _on_closed(self, reason: str) -> None:
        self._end(NodeLost.from_facts("this machine", self.node, f"its daemon is gone ({reason})"))

    def _end(self, error: Exception) -> None:
        if self._closed is not None:
            return
        self._closed = error
        self.takings.page = None
        self.on_ended(self)
        self.ready._settle(error=error)
        # Fail each call separately, from a copy of the table, because another thread may be adding a call. In that case
        # the other thread finds ``_closed``, which was set before this loop, and fails its call itself (``_departed``).
        # The copy must be atomic: building a list of items may trigger a garbage collection, in which a finalizer may
        # let another thread run.
        # tests/_client/test_lost_daemon.py::test_calls_of_other_threads_end_whenever_the_daemon_dies, and
        # tests/_client/test_lost_daemon.py::test_a_call_made_while_the_open_ones_end_leaves_none_open
        for call, handler in list(self._calls.copy().items()):
            self._lose(call, handler, str(error))
            self._calls.pop(call, None)
            self._direct_calls.ended(call)
        self._requests.fail(error)
        if _all_closed():
            pool.close()
        self.events.announce("closed", {"reason": str(error)})

    @property
    def closed(self) -> Exception | None:
        return self._closed

    def close(self, reason: str = "the cluster is closed") -> None:
        """Close the socket; all waits fail with ``ClosedError``. Call this on the loop's own thread."""
        # Close ``unobserved`` before failing the waits, because errors from now on are caused by the close.
        self.unobserved.close()
        # End the calls first, then close the sockets, so that waiters get this reason, and a concurrent call from
        # another thread finds ``_closed`` rather than a socket that accepts frames but never answers.
        # tests/test_embedding.py::test_calls_that_are_open_when_the_cluster_closes_fail_with_closed
        self._end(ClosedError(reason))
        self.direct_sockets.close()
        if self._connection is not None:
            self._connection.close()
        if _all_closed():
            # Close the pool, because another thread may have used it for a call after ``_end``.
            pool.close()

    def end_without_loop(self, error: Exception) -> None:
        """Close from a thread other than the loop's, if the loop is closed or has stopped.

        The socket is only shut down, not closed, if the loop may run again, because the loop still watches it.
        """
        self.unobserved.close()
        with self._arbiter.lock:
            self._end(error)
            if self._connection is not None:
                if self.loop.is_closed():
                    self.direct_sockets.close()
                    self._connection.close()
                else:
                    self._connection.shut()

    def leave_to_parent(self) -> None:
        """Detach in a forked child, because the socket and all its state belong to the parent."""
        self._closed = process.forked("this cluster", self.pid)
        self.takings.page = None  # the page belongs to the parent process
        self.giving_back = GivingBack()
        self._calls.clear()
        self._requests.forget()
        self.unobserved.forget()
        self.direct_sockets.forget()
        if self._connection is not None:
            self._connection.forget()

    def flush(self) -> None:
        """Write the frames held until the end of the loop's turn, which may never come. Any thread may call this."""
        if self._connection is not None and self._closed is None:
            self._connection.is_behind()

    def flush_at_exit(self, timeout: float) -> None:
        if self._connection is not None and self._closed is None:
            self._connection.flush_blocking(timeout)


_clients: weakref.WeakKeyDictionary[NodeClient, None] = weakref.WeakKeyDictionary()
"""Clients of this process, including those that are not yet ready or already closed."""


def _all_clients() -> list[NodeClient]:
    # The copy of ``keyrefs`` is atomic: another thread may be adding a client, which ends an iteration over a WeakSet.
    return [client for reference in _clients.keyrefs() if (client := reference()) is not None]


def _all_closed() -> bool:
    return all(client.closed is not None for client in _all_clients())


# A child has copies of the parent's sockets. Bytes sent by the child would land between the parent's frames, and while
# the child lives, the other side would not notice the death of its parent. So the child closes every copy before user
# code runs. It sends no frame, and takes no lock, because another thread of the parent may have held the lock at the
# fork. tests/test_forks.py::test_locks_that_other_threads_held_at_the_fork_hold_up_no_child
# tests/test_embedding.py::test_a_forked_child_of_the_driver_leaves_the_cluster_alone
def _leave_all_to_parent() -> None:
    for client in _all_clients():
        client.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)
