"""``PoolCalls``: sends calls to any rank of a group that has room, and repeats a lost rank's calls on another rank."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Any, Final, Protocol

from rlinf_async._core import clock, frames
from rlinf_async._core.encoded import Encoded
from rlinf_async._core.error_copy import copy_of
from rlinf_async._core.frames import Status
from rlinf_async._core.payload import Body
from rlinf_async._core.root_cause import name_ranks
from rlinf_async._group.members import GroupCallee, Members
from rlinf_async._group.rank_pool import UNBOUNDED, Attempt, PoolRequest, RankPool, Standing
from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._recorder import recording
from rlinf_async._waits import slow_waits
from rlinf_async.errors import ClosedError
from rlinf_async.handle import Handle

GONE: Final = frozenset({int(Status.DIED), int(Status.LOST)})


class PooledCall(Protocol):
    """A call that any rank may take: the part of ``Handle`` and ``StreamCall`` that the pool uses."""

    _method: str
    _request: PoolRequest
    _body: Encoded | bytes

    def _start(self, attempt: Attempt) -> bool:
        """Send the call to the chosen rank. Return False if it was cancelled."""

    def _stall(self, attempt: Attempt) -> None:
        pass

    def _fail(self, error: BaseException) -> None: ...

    def _needs(self) -> slow_waits.Needs: ...


class PoolCalls:
    """The calls of this process to any rank of a group: sends them, and repeats lost ranks' calls on other ranks.

    Each group has one instance, shared by its views. The lock guards only the state; calls are sent without it.
    """

    def __init__(self, members: Members) -> None:
        self.members = members
        self._state = RankPool(members.size)
        self._lock = Lock()
        self._callees = [GroupCallee(members, (rank,)) for rank in range(members.size)]
        # Maps the ``id`` of each call to the call, in the order of creation; filled only if calls have a deadline.
        self._unfinished: dict[int, PooledCall] = {}
        # Maps each ended endpoint to True if its rank will return, as reported by answers or by the group's owner.
        self._gone: dict[int, bool] = {}
        self._due = math.inf
        for event in ("died", "node_lost"):
            members.client.listen(event, self._on_loss)
        members.client.listen("rank_returned", self._on_returned)
        members.client.listen("closed", self._on_closed)
        self.look()

    def __repr__(self) -> str:
        return repr(self._state)

    # -- standing of ranks -----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Update the ranks' standing, and start the calls that can start now."""
        if self.members.endpoints is not None:
            with self._lock:  # a thread with an older view must not overwrite a newer one
                standing = [self._standing_of(rank) for rank in range(self.members.size)]
                begun = self._state.set_standing(standing, clock.monotonic())
            self._start(begun)

    def _standing_of(self, rank: int) -> Standing:
        members = self.members
        assert members.endpoints is not None
        endpoint = members.endpoints[rank]
        returns = self._gone.get(endpoint)
        if (death := members.deaths.get(rank)) is not None and returns is not False:
            returns = bool(death.get("returns")) and "reason" not in death
        elif returns is None and frames.node_of(endpoint) in members.client.lost_nodes:
            returns = members.supervisor is not None
        if returns is not None:
            return Standing.AWAY if returns else Standing.GONE
        # A restarted rank is still being constructed as long as its calls are held. Calls to the other ranks are held,
        # too, but pooled calls may still use those ranks.
        supervisor = members.supervisor
        is_coming = members.is_held(rank) and supervisor is not None and rank in supervisor.away
        return Standing.AWAY if is_coming else Standing.LIVE

    def _on_loss(self, facts: dict[str, Any]) -> None:
        self.look()

    def _on_returned(self, facts: dict[str, Any]) -> None:
        if facts["group"] == self.members.name:
            if facts["entry"] is None:
                self._gone[facts["was"]] = False
            else:
                self._gone.pop(facts["was"], None)
            self.look()

    def _on_closed(self, facts: dict[str, Any]) -> None:
        if (error := self.members.client.closed) is not None:
            self.fail(copy_of(error))

    # -- calls --------------------------------------------------------------------------------------------------

    def submit(self, call: PooledCall, encoded: Encoded | bytes) -> None:
        """Send a call, or queue it until a rank has room. Raise ClosedError if the group or its cluster is closed."""
        members, request = self.members, call._request
        handler: Any = call
        if not members.admits(handler, call._method):
            return
        members.record(handler, call._method, 1)
        if members.deadlines.limit is not None and isinstance(call, Handle):
            self._unfinished[id(call)] = call
            call._follow(lambda: self._forget(id(call)))
            members.deadlines.watch()
        call._body = encoded
        with self._lock:
            attempt = self._state.place(request, clock.monotonic())
        try:
            if attempt is None:
                call._body = encoded if isinstance(encoded, bytes) else encoded.to_bytes()
                self.wait(call)
            elif not call._start(attempt):  # its deadline has passed meanwhile
                self._start(self._end(attempt))
        except BaseException as error:
            # The caller gets this error, so the deadline must not fail the call a second time.
            self._forget(id(call))
            if handler._ended._event:
                recording.end(handler._ended._event, type(error).__name__)
            if attempt is not None:
                self._start(self._end(attempt))
            raise

    def _forget(self, call: int) -> None:
        self._unfinished.pop(call, None)

    def wait(self, call: PooledCall) -> None:
        """Send a call, whose body is bytes, now or once a rank has room."""
        if (error := self._end_of_group()) is not None:
            call._fail(error)
            return
        with self._lock:
            attempt = self._state.submit(call._request, clock.monotonic())
        if attempt is not None:
            self._start([attempt])
        elif (error := self._end_of_group()) is not None:  # the group has ended and already failed its waiting calls
            self.fail(error)

    def _end_of_group(self) -> BaseException | None:
        members = self.members
        if members.closed and members.client.closed is None and not members.failed:
            return ClosedError(f"group '{members.name}' is closed")
        return members._failure or members.client.closed

    def _start(self, begun: Sequence[Attempt]) -> None:
        todo = deque(begun)
        while todo:
            attempt = todo.popleft()
            call: PooledCall | None = attempt.request.owner if attempt.request is not None else None
            try:
                if call is not None and call._start(attempt):
                    continue
            except Exception as error:
                assert call is not None
                call._fail(error)
            todo += self._end(attempt)

    def _end(self, attempt: Attempt) -> list[Attempt]:
        with self._lock:
            return self._state.end(attempt, clock.monotonic())

    def ended(self, attempt: Attempt, target: int, status: int, body: Body) -> None:
        """Handle a rank's final answer to a call, or the daemon's answer in place of the rank."""
        if status in GONE:
            died = status == Status.DIED
            returns = bool(frames.unpack(body).get("returns")) if died else self.members.supervisor is not None
            self._gone.setdefault(target, returns)
            self.look()
        if begun := self._end(attempt):
            self._start(begun)

    def item_arrived(self, attempt: Attempt) -> None:
        with self._lock:
            attempt.since = None
            begun = self._state.mark_alive(attempt.rank, clock.monotonic())
        if begun:
            self._start(begun)

    def callee(self, rank: int) -> GroupCallee:
        return self._callees[rank]

    def withdraw(self, call: PooledCall) -> bool:
        """Remove a call from the queue. Return False if it was not queued."""
        with self._lock:
            begun = self._state.withdraw(call._request, clock.monotonic())
        self._start(begun or ())
        return begun is not None

    def waiting(self) -> list[Any]:
        with self._lock:
            return [request.owner for request in self._state.waiting()]

    def unfinished(self) -> list[Any]:
        return list(self._unfinished.values())

    def fail(self, error: BaseException) -> None:
        for call in self.waiting():
            if self.withdraw(call):
                call._fail(error)  # the same object, because an error seen at one call counts as seen

    # -- stalls -------------------------------------------------------------------------------------------------

    def watch(self, seconds: float) -> None:
        """Schedule a check for stalled calls in ``seconds``, when a rank's sign of life is due."""
        due = clock.monotonic() + seconds
        if due < self._due:
            self._due = due
            self.members.client.later(seconds, self._look_for_stalls)

    def _look_for_stalls(self) -> None:
        now = clock.monotonic()
        if now < self._due - 0.001:  # this timer is outdated, and a later one has replaced it
            return
        self._due = math.inf
        with self._lock:
            self._state.counts_from = self.members.client.events.counts_from(-math.inf)
            lost = self._state.find_stalled(now)
        for attempt in lost:
            call = attempt.request.owner if attempt.request is not None else None
            if call is not None:  # the call may have been answered in the meantime
                call._stall(attempt)
        with self._lock:
            begun = self._state.begin_elsewhere(now) if lost else ()
            due = self._state.next_stall()
        self._start(begun)
        if due is not None:
            self.watch(max(0.0, due - now))

    # -- descriptions --------------------------------------------------------------------------------------------

    def describe_room(self, request: PoolRequest) -> str:
        who = f"{name_ranks(request.ranks)} of '{self.members.name}'"
        if not self._is_any_there(request):
            return f"waits for {who} to be there"
        if request.in_flight == UNBOUNDED:
            return f"waits for {who} behind earlier calls"
        limit = f"{request.in_flight} call{'s' * (request.in_flight != 1)} (in_flight= of any())"
        key = "" if request.key is None else f", key {request.key!r:.40}"
        return f"waits for room at {who}, where each takes {limit}{key}"

    def _is_any_there(self, request: PoolRequest) -> bool:
        return any(self._state.standing[rank] is Standing.LIVE for rank in request.ranks)

    def needs(self, request: PoolRequest) -> slow_waits.Needs:
        """Return a waiting call's needs: the end of one of the calls that occupy its ranks, or a restart."""
        if not self._is_any_there(request):
            is_restart = self.members.endpoints is not None
            return ([Target(TargetKind.RESTART, name=self.members.name)] if is_restart else []), True
        ranks = request.ranks if request.line is None else request.line.ranks
        with self._lock:
            calls = [
                each.request.owner for rank in ranks for each in self._state.open[rank] if each.request is not None
            ]
        return [target for call in calls if call is not None for target in call._needs()[0]], False
