"""The worker's side of direct sockets to callers on the same node: receives calls and answers without the daemon.

A caller's first call comes through the daemon, which records it as one of the worker's pending calls, so that it can
answer the caller if the worker dies. The answer and later calls can take the direct path::

    caller ── CALL ──► daemon ── CALL ──► worker        DIRECT, with one end of a socket pair, once per caller
    caller ◄───────────── REPLY ───────── worker        SETTLED ──► daemon, a few milliseconds later, many at once
    caller ────────────── CALL ─────────► worker        reported by the caller to the daemon (``direct_calls.py``)
"""

from __future__ import annotations

import resource
import socket
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from rlinf_async._client.client import NodeClient
from rlinf_async._core import clock, frames
from rlinf_async._core.own_logger import own_logger
from rlinf_async._wire.direct_sockets import DirectSockets
from rlinf_async._wire.unix import Connection
from rlinf_async._worker.running_call import Call

logger = own_logger(__name__)

# A process with a lower limit on open files uses no direct sockets, because the sockets to a few hundred workers would
# exceed it.
_MIN_OPEN_FILES: Final = 1024

# A live caller whose sockets have broken this many times gets no new socket.
_MAX_BREAKS: Final = 3

_REPORT_DELAY_S: Final = 0.005


class DirectFrameHandler(Protocol):
    """The handler of frames that callers send directly."""

    def on_direct(self, source: int, way: Connection, frame: list[Any], fds: list[int]) -> None: ...

    def on_batch(self) -> None: ...

    def on_caller_gone(self, source: int, way: Connection) -> None: ...


class DirectCallers:
    """The direct sockets between a worker and its callers, if ``granted`` by the daemon; thread-safe."""

    def __init__(self, client: NodeClient, granted: bool, inbox: DirectFrameHandler) -> None:
        self._client = client
        self._inbox = inbox
        self._granted = granted and resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= _MIN_OPEN_FILES
        self._direct_sockets = DirectSockets(self._send_resume, self._relay, self._on_end)
        self._connections = self._direct_sockets.connections
        self._breaks: Counter[int] = Counter()
        client.own_direct_sockets = self._direct_sockets
        self._lock = threading.Lock()
        self._answered: deque[Call] = deque()
        self._is_armed = False

    def to(self, source: int) -> Connection | None:
        """Return the socket to a caller; None if its answers go through the daemon."""
        try:
            return self._connections[source]
        except KeyError:
            with self._lock:
                if source not in self._connections:
                    self._connect(source)
                return self._connections.setdefault(source, None)

    def _connect(self, source: int) -> None:
        if not self._granted or frames.node_of(source) != self._client.node or not frames.number_of(source):
            return
        # Open no socket to the worker itself: a RESUME could not tell its two ends apart, so after a lost RESUME the
        # worker would answer itself forever. tests/_worker/test_direct_callers.py::
        # test_a_worker_has_no_socket_to_itself
        if source == self._client.endpoint:
            return
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # no descriptor is free: continue without a socket
            logger.info("no socket to a caller: %s", error)
            return

        def called(frame: list[Any], fds: list[int]) -> None:
            self._inbox.on_direct(source, way, frame, fds)

        way = self._client.connect_directly(
            ours,
            on_frame=called,
            on_closed=lambda reason: self._direct_sockets.broke(source),
            on_batch=self._inbox.on_batch,
        )
        # Add the socket to the table before the caller gets its end. The caller's first direct call may already be on
        # the socket when the daemon relays a later call of the same caller. If the table lacked the socket, the socket
        # would not be read first, and the relayed call would overtake the direct one.
        # tests/_worker/test_direct_callers.py::test_the_very_first_direct_call_is_heard_before_what_the_daemon_relays
        # tests/_worker/test_direct_callers.py::test_a_caller_is_heard_out_from_the_moment_that_it_may_call_directly
        self._direct_sockets.add(source, way, self._client.direct_sockets)
        self._client.send((frames.DIRECT, 1, self._client.endpoint, source), [theirs.detach()])

    def _send_resume(self, source: int, received: int) -> None:
        self._client.send_resume(source, self._client.endpoint, received)

    def _relay(self, source: int, frame: list[Any], fds: Sequence[int]) -> None:
        self._client.send(frame, fds)

    def _on_end(self, source: int, way: Connection | None, has_ended: bool) -> None:
        if way is None:  # the caller's end was handled before the socket was added
            return
        self._breaks[source] += 1
        if has_ended or self._breaks[source] >= _MAX_BREAKS:
            self._connections[source] = None
        if has_ended:
            del self._breaks[source]
            self._inbox.on_caller_gone(source, way)

    def read_available(self, source: int) -> None:
        """Read a caller's direct frames before a relayed frame is handled."""
        way = self._connections.get(source)
        if way is not None:
            way.read_available()

    def read_all_available(self) -> None:
        for source in list(self._connections):
            self.read_available(source)

    def answered(self, call: Call) -> None:
        # Append the call before testing ``_is_armed``. No lock is needed, because either a concurrent report takes the
        # call, or a new report is scheduled.
        self._answered.append(call)
        if not self._is_armed:
            self._is_armed = True
            self._client.later(_REPORT_DELAY_S, self._report)

    def _report(self) -> None:
        self._is_armed = False
        answered = [self._answered.popleft() for _ in range(len(self._answered))]
        # Check each socket for unsent data once, after all its answers; a check after each answer would flush every
        # answer separately. Until an answer has actually been sent, the daemon must be able to answer if the worker
        # dies, so the caller, not this worker, reports a call whose answer is still in a buffer.
        # tests/_worker/test_direct_callers.py::
        # test_no_answer_is_written_by_itself_for_the_sake_of_the_report
        ways = {call.direct for call in answered if call.direct is not None and call.came_at is not None}
        behind = {way for way in ways if way.is_behind()}
        told = [
            each
            for call in answered
            if call.came_at is None or call.direct not in behind
            for each in (call.source, call.call)
        ]
        if told:
            self._client.send((frames.SETTLED, 0, self._client.endpoint, told))

    def forget(self) -> None:
        """Drop the parent's sockets in a forked child."""
        self._direct_sockets.forget()

    def flush_blocking(self, seconds: float) -> None:
        """Write all queued answers before the process ends, within ``seconds`` in total."""
        # The exit of this process returns all items anyway, and confirmations would no longer arrive.
        self._client.giving_back.forget()
        until = clock.monotonic() + seconds
        for connection in list(self._connections.values()):  # a copy, because a caller may be added
            if connection is not None:
                connection.flush_blocking(max(0.0, until - clock.monotonic()))
