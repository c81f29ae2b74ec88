"""``PoolCalls``: sends calls to whichever rank of a group has room, and those that a rank has lost to another one."""

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
from rlinf_async._group.members import Callee, Members
from rlinf_async._group.rank_pool import UNBOUNDED, Attempt, RankPool, Standing, Wish
from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._waits import slow_waits
from rlinf_async.errors import ClosedError
from rlinf_async.handle import Handle

GONE: Final = frozenset({int(Status.DIED), int(Status.LOST)})


class PooledCall(Protocol):
    """A call that any rank takes: ``Handle`` or ``StreamCall``, and what this needs beside."""

    _method: str
    _wish: Wish
    _body: Encoded | bytes

    def _start(self, attempt: Attempt) -> bool:
        """Send it to the rank that was chosen. Return False if nobody waits for it any more."""

    def _stall(self, attempt: Attempt) -> None:
        """Its rank has been silent for too long."""

    def _fail(self, error: BaseException) -> None: ...

    def _needs(self) -> slow_waits.Needs: ...


class PoolCalls:
    """The calls of this process on any rank of a group: sends them, and begins those elsewhere that a rank has lost.

    One for each group, shared by its views.  Its lock guards the state only: calls are sent without it.
    """

    def __init__(self, members: Members) -> None:
        self.members = members
        self._state = RankPool(members.size)
        self._lock = Lock()
        self._callees = [Callee(members, (rank,)) for rank in range(members.size)]
        self._unfinished: dict[int, PooledCall] = {}
        """By ``id``, in the order in which they were made; kept only where calls have a deadline."""
        self._gone: dict[int, bool] = {}
        """Endpoints that have ended, as answers or their group's owner tell, and whether another one follows."""
        self._due = math.inf
        """When the next look for stalls is due."""
        for event in ("died", "node_lost"):
            members.client.listen(event, self._on_loss)
        members.client.listen("rank_returned", self._on_returned)
        members.client.listen("closed", self._on_closed)
        self.look()

    def __repr__(self) -> str:
        return repr(self._state)

    # -- who lives ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """See which ranks live, and begin the calls that may begin because of it."""
        if self.members.endpoints is not None:
            with self._lock:  # or another thread that has seen less would have the last word
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
        # A rank that is back is still being constructed where its group has not gone on; the calls of the others wait
        # as well, but not these.
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
        """Send a call, or keep it until a rank has room; its arguments are encoded now.

        Raises:
            ClosedError: the group or its cluster is closed.
        """
        members, wish = self.members, call._wish
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
            attempt = self._state.place(wish, clock.monotonic())
        if attempt is None and not isinstance(encoded, bytes):
            call._body = encoded.to_bytes()
        if attempt is None:
            self.wait(call)
            return
        try:
            call._start(attempt)
        except BaseException:
            self._forget(id(call))  # its caller has the error now, and none when the deadline passes
            self._start(self._end(attempt))
            raise

    def _forget(self, call: int) -> None:
        self._unfinished.pop(call, None)

    def wait(self, call: PooledCall) -> None:
        """Send a call that carries bytes, now or once a rank has room."""
        if (error := self._end_of_group()) is not None:
            call._fail(error)
            return
        with self._lock:
            attempt = self._state.submit(call._wish, clock.monotonic())
        if attempt is not None:
            self._start([attempt])
        elif (error := self._end_of_group()) is not None:  # it has come since, and those that waited have failed
            self.fail(error)

    def _end_of_group(self) -> BaseException | None:
        members = self.members
        if members.closed and members.client.closed is None and not members.failed:
            return ClosedError(f"group '{members.name}' is closed")
        return members._failure or members.client.closed

    def _start(self, begun: Sequence[Attempt]) -> None:
        """Send calls that have waited."""
        todo = deque(begun)
        while todo:
            attempt = todo.popleft()
            call: PooledCall | None = attempt.wish.owner if attempt.wish is not None else None
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
        """A rank has given its last answer to a call, or somebody has in its place."""
        if status in GONE:
            died = status == Status.DIED
            returns = bool(frames.unpack(body).get("returns")) if died else self.members.supervisor is not None
            self._gone.setdefault(target, returns)
            self.look()
        if begun := self._end(attempt):
            self._start(begun)

    def heard(self, attempt: Attempt) -> None:
        """An item of a stream has come."""
        with self._lock:
            attempt.since = None
            begun = self._state.hear(attempt.rank, clock.monotonic())
        if begun:
            self._start(begun)

    def callee(self, rank: int) -> Callee:
        return self._callees[rank]

    def withdraw(self, call: PooledCall) -> bool:
        """Take a call out of those that wait. Return False if it does not."""
        with self._lock:
            begun = self._state.withdraw(call._wish, clock.monotonic())
        self._start(begun or ())
        return begun is not None

    def waiting(self) -> list[Any]:
        with self._lock:
            return [wish.owner for wish in self._state.waiting()]

    def unfinished(self) -> list[Any]:
        return list(self._unfinished.values())

    def fail(self, error: BaseException) -> None:
        for call in self.waiting():
            if self.withdraw(call):
                call._fail(error)  # the same one: who saw it at one call has seen it

    # -- stalls -------------------------------------------------------------------------------------------------

    def watch(self, seconds: float) -> None:
        """A rank owes a sign of life within so many seconds: look then."""
        due = clock.monotonic() + seconds
        if due < self._due:
            self._due = due
            self.members.client.later(seconds, self._look_for_stalls)

    def _look_for_stalls(self) -> None:
        now = clock.monotonic()
        if now < self._due - 0.001:  # an earlier moment was asked for meanwhile, and its look has set a later one
            return
        self._due = math.inf
        with self._lock:
            self._state.counts_from = self.members.client.events.counts_from(-math.inf)
            lost = self._state.find_stalled(now)
        for attempt in lost:
            call = attempt.wish.owner if attempt.wish is not None else None
            if call is not None:  # else it has been answered meanwhile
                call._stall(attempt)
        with self._lock:
            begun = self._state.begin_elsewhere(now) if lost else ()
            due = self._state.next_stall()
        self._start(begun)
        if due is not None:
            self.watch(max(0.0, due - now))

    # -- words --------------------------------------------------------------------------------------------------

    def describe_room(self, wish: Wish) -> str:
        """The reason why a call waits."""
        who = f"{name_ranks(wish.ranks)} of '{self.members.name}'"
        if not self._is_any_there(wish):
            return f"waits for {who} to be there"
        if wish.in_flight == UNBOUNDED:
            return f"waits for {who} behind earlier calls"
        limit = f"{wish.in_flight} call{'s' * (wish.in_flight != 1)} (in_flight= of any())"
        key = "" if wish.key is None else f", key {wish.key!r:.40}"
        return f"waits for room at {who}, where each takes {limit}{key}"

    def _is_any_there(self, wish: Wish) -> bool:
        return any(self._state.standing[rank] is Standing.LIVE for rank in wish.ranks)

    def needs(self, wish: Wish) -> slow_waits.Needs:
        """The calls of which one has to be answered, or the restart, before a call that waits begins."""
        if not self._is_any_there(wish):
            is_restart = self.members.endpoints is not None
            return ([Target(TargetKind.RESTART, name=self.members.name)] if is_restart else []), True
        ranks = wish.ranks if wish.line is None else wish.line.ranks
        with self._lock:
            calls = [each.wish.owner for rank in ranks for each in self._state.open[rank] if each.wish is not None]
        return [target for call in calls if call is not None for target in call._needs()[0]], False
