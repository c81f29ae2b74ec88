"""Routing of calls through direct sockets or the daemon, per target, and reports of open direct calls to the daemon.

A worker gives each caller on its node a direct socket (``_worker/direct_callers.py``). Calls use it unless a relayed
frame is still in transit to the worker. The daemon answers in place of dead workers, so the caller reports to it each
direct call that is not answered immediately, and later that the call was answered::

    caller ── CALL ──► worker           caller ◄── REPLY ── worker
    caller ── PENDING ──► daemon        2 ms later, if the call is still open; again once it is answered
    caller ◄── REPLY, "died" ── daemon  even if the worker had died before the report

The worker keeps the order as well: before it takes a caller's relayed frame, it reads everything that the same caller
has sent directly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rlinf_async._client.reply_handler import ReplyHandler
from rlinf_async._core import frames
from rlinf_async._wire.direct_sockets import DirectSockets
from rlinf_async._wire.unix import Connection

REPORT_DELAY_S: Final = 0.002
"""Delay before calls that are still open, and answers to reported calls, are reported to the daemon."""

MAX_TARGETS: Final = 8
"""Maximum number of ranks for a call over direct sockets; with more, the daemon's fan-out is cheaper for the caller."""

_MAX_ROWS: Final = 4096


class DirectCalls:
    """The direct calls of one client that are open or not yet reported to its daemon.

    Args:
        direct_sockets: sockets that workers have handed out.
        open_calls: the client's open calls, by number.
        lock: held wherever answers are handled.
        send: sends a frame to the daemon.
        later: schedules a callback, like ``NodeClient.later``.
    """

    def __init__(
        self,
        direct_sockets: DirectSockets,
        open_calls: Mapping[int, ReplyHandler],
        lock: threading.RLock,
        send: Callable[[frames.Frame], None],
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._direct_sockets = direct_sockets
        self._calls = open_calls
        self._lock = lock
        self._send = send
        self._later = later
        self._relayed: dict[int, int] = {}
        """Maps each worker to the last call that the daemon relayed to it."""
        self._signalled: dict[int, int] = {}
        """Maps each worker to the last open call about which the daemon relayed a signal to it."""
        self._open: dict[int, tuple[str, Sequence[int]]] = {}
        self._unreported: list[int] = []
        self._reported: set[int] = set()
        self._answered: list[int] = []
        self._armed = False

    def __repr__(self) -> str:
        return f"<DirectCalls [{len(self._open)} open, {len(self._reported)} of them known to the daemon]>"

    def open(self, call: int, targets: Sequence[int], method: str) -> tuple[list[tuple[int, Connection]], list[int]]:
        """Choose the path to each target of a call that is about to be sent.

        Returns:
            The slots of direct targets with their sockets, and the slots that the daemon relays.
        """
        # One caller's calls run in the order in which they were made, although they take two paths: one hop through the
        # socket, two through the daemon. A direct call would overtake an earlier relayed call, so calls are relayed as
        # long as an earlier relayed call is unanswered. A relayed call could overtake direct calls only at the worker,
        # which therefore reads the whole socket before it takes a relayed call (``DirectCallers.read_available``). A
        # broken socket still takes calls, which are kept, and relayed in order when the socket is handed over.
        # tests/_client/test_direct_calls.py::test_calls_run_in_their_order_whichever_way_they_take
        # tests/_client/test_direct_calls.py::test_a_call_follows_those_that_a_broken_socket_still_owes
        # tests/simulation/test_sim_order.py::test_no_call_overtakes_those_that_a_full_socket_still_owes
        sockets, rest = self._find_sockets(targets, len(targets) > MAX_TARGETS)
        for slot in rest:
            self._relayed[targets[slot]] = call
        if sockets:
            self._went_directly(call, method, [targets[slot] for slot, _ in sockets] if rest else targets)
        return sockets, rest

    def open_again(self, call: int, target: int, method: str) -> Connection | None:
        """Choose the path to one more target of an open call. Return its socket; None if the daemon relays the call."""
        sockets, _ = self._find_sockets((target,))
        if not sockets:
            self._relayed[target] = call
            return None
        _, targets = self._open.get(call, ("", ()))
        self._went_directly(call, method, [*targets, target])
        return sockets[0][1]

    def _find_sockets(
        self, targets: Sequence[int], prefers_daemon: bool = False
    ) -> tuple[list[tuple[int, Connection]], list[int]]:
        """Return the slots whose targets have a socket that keeps the next frame in order, and all other slots.

        Args:
            prefers_daemon: True to use only full or broken sockets, whose content a relayed frame would overtake.
        """
        find, relayed, signalled, calls = self._direct_sockets.find, self._relayed, self._signalled, self._calls
        sockets: list[tuple[int, Connection]] = []
        rest: list[int] = []
        for slot, target in enumerate(targets):
            connection = find(target)
            if connection is None or (
                not connection.is_closed
                and (
                    relayed.get(target) in calls
                    or (signalled and signalled.get(target) in calls)
                    or (prefers_daemon and not connection.is_behind())
                )
            ):
                rest.append(slot)
            else:
                sockets.append((slot, connection))
        return sockets, rest

    def _went_directly(self, call: int, method: str, targets: Sequence[int]) -> None:
        self._open[call] = (method, targets)
        self._unreported.append(call)
        if not self._armed:
            self._arm()

    def split(self, call: int, targets: Sequence[int]) -> tuple[list[Connection], list[int]]:
        """Return the sockets for a signal that must follow a call, and the targets to which the daemon relays it."""
        _, went = self._open.get(call, ("", ()))
        others = [target for target in targets if target not in went]
        # After a relayed signal, later calls are relayed as well (``note_signal``). They would overtake calls that are
        # still in a full socket.
        sockets, rest = self._find_sockets(others, prefers_daemon=True)
        direct = [connection for _, connection in sockets]
        relayed = [others[slot] for slot in rest]
        for target in targets:
            if target in went:
                if (connection := self._direct_sockets.find(target)) is None:
                    relayed.append(target)
                else:
                    direct.append(connection)
        return direct, relayed

    def relays(self, worker: int, call: int) -> None:
        """Record that the daemon relays a call that was meant for a socket; later calls must not overtake it."""
        self._relayed[worker] = call

    def note_signal(self, call: int, workers: Sequence[int]) -> None:
        """Record that the daemon relays a signal about a call: its cancel, or the failure of another rank.

        Later calls are then relayed until this call is answered. Otherwise a later call would be sent directly as soon
        as all other relayed calls were answered, and would overtake the signal. tests/simulation/test_sim_cluster.py::
        test_a_call_does_not_overtake_the_cancel_of_an_earlier_one
        """
        if call in self._calls:
            self._signalled.update(dict.fromkeys(workers, call))

    def answered(self, call: int, target: int) -> None:
        if call in self._reported and target in self._open[call][1]:
            self._answered += (frames.number_of(target), call)
            if not self._armed:
                self._arm()

    def ended(self, call: int) -> None:
        self._open.pop(call, None)
        self._reported.discard(call)
        # Work on a copy, because another thread that cancels a call may be adding an entry.
        if self._signalled:
            self._signalled = {worker: other for worker, other in self._signalled.copy().items() if other != call}

    def forget(self, worker: int) -> None:
        self._relayed.pop(worker, None)
        self._signalled.pop(worker, None)

    def _arm(self) -> None:
        self._armed = True
        self._later(REPORT_DELAY_S, self.report)

    def report(self) -> None:
        """Report to the daemon the calls that are still open, and reported calls that have been answered."""
        with self._lock:
            self._armed = False
            unreported, self._unreported = self._unreported, []
            answered, self._answered = self._answered, []
            pending = [row for call in unreported if call in self._open for row in self._open_of(call)]
        self._send_report(pending, answered)

    def _send_report(self, pending: Sequence[tuple[int, int, int, str]], answered: Sequence[int] = ()) -> None:
        # A frame holds 8 MiB, and a caller may have hundreds of thousands of open calls.
        for first in range(0, max(len(pending), len(answered)), _MAX_ROWS):
            part = slice(first, first + _MAX_ROWS)
            self._send((frames.PENDING, 0, 0, pending[part], answered[part]))

    def report_all(self, worker: int) -> None:
        """Report every open call of an ended worker, so that the daemon answers in its place.

        This includes calls that the worker has reported as answered, because their answers may have been lost in a
        socket that broke or never arrived here when the worker was killed. tests/simulation/test_sim_cluster.py::
        test_answers_in_a_socket_that_never_arrived_are_failures_of_a_dead_worker
        """
        with self._lock:
            open_calls = [
                (frames.number_of(worker), slot, call, handler._method)
                for call, handler in dict(self._calls).items()
                for slot in handler._unanswered()
                if handler._targets[slot] == worker
            ]
        self._send_report(open_calls)

    def _open_of(self, call: int) -> list[tuple[int, int, int, str]]:
        method, sockets = self._open[call]
        self._reported.add(call)
        handler = self._calls.get(call)
        if handler is None:  # the caller has just abandoned the call
            return []
        waiting = [(handler._targets[slot], slot) for slot in handler._unanswered()]
        return [(frames.number_of(target), slot, call, method) for target, slot in waiting if target in sockets]
