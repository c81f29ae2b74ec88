"""Routes a caller's calls by direct socket or daemon, per target; tells the daemon which direct ones are open.

A worker hands a socket of its own to each caller on its node (``_worker/direct_callers.py``); from then on calls take
that one too, unless something that the daemon relays is still on its way to the worker.  The daemon answers for the
dead, so it hears of every call that is not answered at once, and tells its end if the worker dies of it::

    caller ── CALL ──► worker           caller ◄── REPLY ── worker
    caller ── PENDING ──► daemon        2 ms later, if it is still open; and again when it has been answered
    caller ◄── REPLY, "died" ── daemon  also where the worker had died before it was told

In the other direction order is the worker's to keep: before it takes in what the daemon relays from a caller, it
takes in what the same caller has sent directly.
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
"""Seconds after which the daemon hears of calls that are still open, or have been answered since it heard of them."""

MAX_TARGETS: Final = 8
"""Ranks; a call to more of them costs its caller less if the daemon fans it out."""


class DirectCalls:
    """The direct calls of one client, open or not yet reported to its daemon.

    Args:
        direct_sockets: the sockets that workers have handed out.
        open_calls: of the client, by number.
        lock: held wherever answers are handled.
        send: to the daemon.
        later: as ``NodeClient.later``.
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
        """By worker, the last call that went to it by way of the daemon."""
        self._signalled: dict[int, int] = {}
        """By worker, the last open call that was cancelled by way of the daemon."""
        self._open: dict[int, tuple[str, Sequence[int]]] = {}
        """The calls that are open: what they call, and whom directly."""
        self._unreported: list[int] = []
        self._reported: set[int] = set()
        self._answered: list[int] = []
        self._armed = False

    def __repr__(self) -> str:
        return f"<DirectCalls [{len(self._open)} open, {len(self._reported)} of them known to the daemon]>"

    def open(self, call: int, targets: Sequence[int], method: str) -> tuple[list[tuple[int, Connection]], list[int]]:
        """A call is about to be sent.

        Returns:
            The slots of the targets that it goes to directly, with the ways to send it; those of the others, for whom
            the daemon relays it.
        """
        # Calls of one caller run in the order in which they were made, and there are two ways: one hop by the socket,
        # two by the daemon.  A direct call would overtake a relayed one before it, so it is relayed too as long as that
        # is unanswered.  A relayed call would overtake direct ones only at the worker, which reads all that has come on
        # the socket before it takes in a relayed one (``DirectCallers.read_available``).  A broken socket takes calls
        # on all the same: they are kept, and relayed in their order when it is handed over.
        # tests/_client/test_direct_calls.py::test_calls_run_in_their_order_whichever_way_they_take
        # tests/_client/test_direct_calls.py::test_a_call_follows_those_that_a_broken_socket_still_owes
        # tests/simulation/test_sim_order.py::test_no_call_overtakes_those_that_a_full_socket_still_owes
        ways, rest = self._find_ways(targets, len(targets) > MAX_TARGETS)
        for slot in rest:
            self._relayed[targets[slot]] = call
        if ways:
            self._went_directly(call, method, [targets[slot] for slot, _ in ways] if rest else targets)
        return ways, rest

    def open_again(self, call: int, target: int, method: str) -> Connection | None:
        """An open call is about to be sent to one more target. Return the way, None where the daemon relays it."""
        ways, _ = self._find_ways((target,))
        if not ways:
            self._relayed[target] = call
            return None
        _, targets = self._open.get(call, ("", ()))
        self._went_directly(call, method, [*targets, target])
        return ways[0][1]

    def _find_ways(
        self, targets: Sequence[int], prefers_daemon: bool = False
    ) -> tuple[list[tuple[int, Connection]], list[int]]:
        """Return the slots of workers to whom the next frame keeps its place on a socket, with that, and the others'.

        Args:
            prefers_daemon: a socket is for frames only that a relayed one would overtake: it is full, or broken.
        """
        find, relayed, signalled, calls = self._direct_sockets.find, self._relayed, self._signalled, self._calls
        ways: list[tuple[int, Connection]] = []
        rest: list[int] = []
        for slot, target in enumerate(targets):
            way = find(target)
            if way is None or (
                not way.is_closed
                and (
                    relayed.get(target) in calls
                    or (signalled and signalled.get(target) in calls)
                    or (prefers_daemon and not way.is_behind())
                )
            ):
                rest.append(slot)
            else:
                ways.append((slot, way))
        return ways, rest

    def _went_directly(self, call: int, method: str, targets: Sequence[int]) -> None:
        self._open[call] = (method, targets)
        self._unreported.append(call)
        if not self._armed:
            self._arm()

    def split(self, call: int, targets: Sequence[int]) -> tuple[list[Connection], list[int]]:
        """The sockets by which what concerns a call follows it, and those of its targets that the daemon reaches."""
        _, went = self._open.get(call, ("", ()))
        others = [target for target in targets if target not in went]
        # A relayed cancel has later calls relayed too (``has_signalled``), past those that a full socket owes.
        ways, rest = self._find_ways(others, prefers_daemon=True)
        direct = [way for _, way in ways]
        relayed = [others[slot] for slot in rest]
        for target in targets:
            if target in went:
                if (way := self._direct_sockets.find(target)) is None:
                    relayed.append(target)
                else:
                    direct.append(way)
        return direct, relayed

    def relays(self, worker: int, call: int) -> None:
        """The daemon relays a call that was to go directly: later ones must not overtake it."""
        self._relayed[worker] = call

    def has_signalled(self, call: int, workers: Sequence[int]) -> None:
        """The daemon relays the cancel of a call, or another rank's failure in it.

        What is called next would go directly, and overtake it, as soon as all relayed calls but this one are answered:
        until this one is, it is relayed too.
        tests/simulation/test_sim_cluster.py::test_a_call_does_not_overtake_the_cancel_of_an_earlier_one
        """
        if call in self._calls:
            self._signalled.update(dict.fromkeys(workers, call))

    def answered(self, call: int, target: int) -> None:
        """A worker has given its last answer to a call; under the lock."""
        if call in self._reported and target in self._open[call][1]:
            self._answered += (frames.number_of(target), call)
            if not self._armed:
                self._arm()

    def ended(self, call: int) -> None:
        """All have answered a call; under the lock."""
        self._open.pop(call, None)
        self._reported.discard(call)
        if self._signalled:  # of a copy: another thread may be cancelling a call
            self._signalled = {worker: other for worker, other in self._signalled.copy().items() if other != call}

    def forget(self, worker: int) -> None:
        """There is no way to a worker any more."""
        self._relayed.pop(worker, None)
        self._signalled.pop(worker, None)

    def _arm(self) -> None:
        self._armed = True
        self._later(REPORT_DELAY_S, self.report)

    def report(self) -> None:
        """Reports to the daemon calls that are still open, and those reported before that have been answered."""
        with self._lock:
            self._armed = False
            unreported, self._unreported = self._unreported, []
            answered, self._answered = self._answered, []
            pending = [row for call in unreported if call in self._open for row in self._open_of(call)]
        if pending or answered:
            self._send((frames.PENDING, 0, 0, pending, answered))

    def report_all(self, worker: int) -> None:
        """A worker has ended after its socket: the daemon answers for it, of every call that is open still.

        Also of those that it had said were answered: an answer may have been in a socket that broke, or that never
        arrived here, when the worker was killed.
        tests/simulation/test_sim_cluster.py::test_answers_in_a_socket_that_never_arrived_are_failures_of_a_dead_worker
        """
        with self._lock:
            open_calls = [
                (frames.number_of(worker), slot, call, handler._method)
                for call, handler in dict(self._calls).items()
                for slot in handler._unanswered()
                if handler._targets[slot] == worker
            ]
        if open_calls:
            self._send((frames.PENDING, 0, 0, open_calls, []))

    def _open_of(self, call: int) -> list[tuple[int, int, int, str]]:
        method, ways = self._open[call]
        self._reported.add(call)
        handler = self._calls.get(call)
        if handler is None:  # it has just been given up
            return []
        waiting = [(handler._targets[slot], slot) for slot in handler._unanswered()]
        return [(frames.number_of(target), slot, call, method) for target, slot in waiting if target in ways]
