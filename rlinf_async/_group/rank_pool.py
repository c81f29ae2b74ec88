"""``RankPool``: assigns calls that any rank may take, by load and key, and queues the rest: plain state without IO."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

# Number of conversations with a remembered rank; a further one evicts the least recently used.
MAX_KEYS: Final = 1 << 16

UNBOUNDED: Final = 1 << 62


class Standing(Enum):
    """State of a rank, as the pool knows it."""

    LIVE = auto()
    # The rank is being started, for the first time or again: calls wait for it only if no rank lives.
    AWAY = auto()
    # The rank will not be restarted: a call goes there, and fails, only if no rank lives or may return.
    GONE = auto()


@dataclass(eq=False)
class _CallQueue:
    ranks: tuple[int, ...]
    waiting: OrderedDict[int, PoolRequest] = field(default_factory=OrderedDict)

    def first(self) -> tuple[int, PoolRequest]:
        return next(iter(self.waiting.items()))


@dataclass(eq=False, slots=True)
class PoolRequest:
    """Call in the pool.

    Attributes:
        ranks: ranks that may take the call.
        in_flight: limit on the open calls of its rank, this one included.
        stall_timeout: seconds without a sign of life of its rank after which the call is lost; None for no limit.
        key: key of its conversation, which stays at one rank; None for none.
        owner: the caller's object for the call.
        number: position among the waiting calls.
        line: queue in which the call waits; None if it does not wait.
    """

    ranks: tuple[int, ...]
    in_flight: int = UNBOUNDED
    stall_timeout: float | None = None
    key: Hashable = None
    owner: Any = None
    number: int = 0
    line: _CallQueue | None = None


@dataclass(eq=False, slots=True)
class Attempt:
    """Call at a rank, until that rank has sent its final answer.

    Attributes:
        request: the call; None once the answer is no longer needed.
        since: time since which the rank owes a sign of life; None while it owes none.
    """

    rank: int
    request: PoolRequest | None
    since: float | None

    def detach(self) -> None:
        """Ignore the answer; the call counts as open at the rank until it arrives."""
        self.request = self.since = None


class RankPool:
    """Calls of one process on any rank of a group.

    A call goes to the live rank with the fewest open calls, the first among equals: a process that has just run is the
    quickest. If all ranks have ``in_flight`` calls, the call waits; a call never takes room that an earlier one could
    use. The first call of a conversation binds its key to a rank, among equally loaded ones to the rank with the fewest
    keys; later calls wait for that rank alone, while it lives and is not silent.

    Methods that may make room return the attempts that start because of it, in order.

    Attributes:
        standing: state by rank.
        open: unanswered calls by rank.
        counts_from: time before which silence does not count, because a rank of the run was in the debugger.
    """

    def __init__(self, size: int) -> None:
        self.standing = [Standing.AWAY] * size
        self.open: list[dict[Attempt, None]] = [{} for _ in range(size)]
        self.counts_from = -math.inf
        self._last_sign = [0.0] * size
        # Ranks at which a call has stalled, and that have sent nothing since.
        self._silent: set[int] = set()
        self._numbers = itertools.count(1)
        self._all_well = False
        self._lines: dict[tuple[int, ...], _CallQueue] = {}
        self._keyed = [_CallQueue((rank,)) for rank in range(size)]
        self._waiting = 0
        # Rank by conversation; equal keys of two views are different conversations.
        self._bound: OrderedDict[tuple[tuple[int, ...], Hashable], int] = OrderedDict()
        self._keys = [0] * size

    def __repr__(self) -> str:
        calls = ", ".join(str(len(attempts)) for attempts in self.open)
        return f"<RankPool [{calls} open, {self._waiting} waiting]>"

    # -- calls --------------------------------------------------------------------------------------------------

    def place(self, request: PoolRequest, now: float) -> Attempt | None:
        """Start a call at a rank that has room. Return None if the call has to wait."""
        candidates: Sequence[int] = request.ranks if self._all_well else self._eligible(request.ranks)
        if request.key is not None and candidates:
            candidates = (self._rank_of_key(request),)
        best, least = -1, request.in_flight
        for rank in candidates:
            count = len(self.open[rank])
            # A rank for which an earlier call waits must take that one first.
            if count < least and (not self._waiting or self._first_for(rank) is None):
                best, least = rank, count
                if not count:
                    break
        return None if best < 0 else self._begin(best, request, now)

    def submit(self, request: PoolRequest, now: float) -> Attempt | None:
        """Start a call as ``place`` does; queue it if it has to wait."""
        attempt = self.place(request, now)
        if attempt is None:
            request.number = next(self._numbers)
            self._queue(request)
        return attempt

    def withdraw(self, request: PoolRequest, now: float) -> list[Attempt] | None:
        """Remove a call from its queue. Return None if it is not queued."""
        if (line := request.line) is None:
            return None
        self._unqueue(request)
        return self._fill(line.ranks, now)  # a later call may have a larger in_flight, and fit now

    def waiting(self) -> list[PoolRequest]:
        found = [request for line in (*self._lines.values(), *self._keyed) for request in line.waiting.values()]
        return sorted(found, key=lambda request: request.number)

    # -- signs of life ------------------------------------------------------------------------------------------

    def end(self, attempt: Attempt, now: float) -> list[Attempt]:
        """Record the last answer to a call, or that it could not be sent."""
        rank = attempt.rank
        self.open[rank].pop(attempt, None)
        if self._silent:
            begun = self.mark_alive(rank, now)
            return [*begun, *self._fill((rank,), now)]
        self._last_sign[rank] = now
        return self._fill((rank,), now) if self._waiting else []

    def mark_alive(self, rank: int, now: float) -> list[Attempt]:
        self._last_sign[rank] = now
        if rank not in self._silent:
            return []
        self._silent.discard(rank)
        return self._settle(now)

    def set_standing(self, standing: Sequence[Standing], now: float) -> list[Attempt]:
        changed = {rank for rank, each in enumerate(standing) if each is not self.standing[rank]}
        self.standing = list(standing)
        self._silent -= changed
        return self._settle(now) if changed else []

    # -- stalls -------------------------------------------------------------------------------------------------

    def find_stalled(self, now: float) -> list[Attempt]:
        """Return the calls of ranks that were silent for too long; until a sign of life, new calls avoid these."""
        found = []
        for rank, owed in self._owed():
            silence = now - self._owes_since(rank)
            if lost := [attempt for attempt, timeout in owed if silence >= timeout]:
                self._silent.add(rank)
                self._all_well = False
                found += lost
        return found

    def begin_elsewhere(self, now: float) -> list[Attempt]:
        """Start waiting calls that may go to other ranks, after ranks were found silent."""
        return self._settle(now)

    def next_stall(self) -> float | None:
        moments = [self._owes_since(rank) + min(timeout for _, timeout in owed) for rank, owed in self._owed()]
        return min(moments, default=None)

    def _owed(self) -> Iterator[tuple[int, list[tuple[Attempt, float]]]]:
        """Yield ranks that owe a sign of life to calls with a stall timeout, with these calls and timeouts."""
        for rank, attempts in enumerate(self.open):
            owed = [
                (each, each.request.stall_timeout)
                for each in attempts
                if each.since is not None and each.request is not None and each.request.stall_timeout is not None
            ]
            if owed:
                yield rank, owed

    def _owes_since(self, rank: int) -> float:
        since = min(each.since for each in self.open[rank] if each.since is not None)
        return max(self._last_sign[rank], since, self.counts_from)

    # -- choice -------------------------------------------------------------------------------------------------

    def _eligible(self, ranks: Sequence[int]) -> Sequence[int]:
        """Return the best of these ranks: live ones, else silent ones, else none while a rank may return."""
        live = [rank for rank in ranks if self.standing[rank] is Standing.LIVE]
        if live:
            return [rank for rank in live if rank not in self._silent] or live
        return () if any(self.standing[rank] is Standing.AWAY for rank in ranks) else ranks

    def _rank_of_key(self, request: PoolRequest) -> int:
        """Return the rank of a conversation; bind a new one, or one whose rank is lost, to the least loaded rank."""
        conversation = request.ranks, request.key
        old = self._bound.pop(conversation, None)
        eligible = self._eligible(request.ranks) or [
            rank for rank in request.ranks if self.standing[rank] is Standing.AWAY
        ]
        rank = old if old is not None and old in eligible else min(eligible, key=self._load)
        self._bound[conversation] = rank  # inserted last, because the first entry is evicted first
        self._keys[rank] += 1
        if old is None and len(self._bound) > MAX_KEYS:
            old = self._bound.popitem(last=False)[1]
        if old is not None:
            self._keys[old] -= 1
        return rank

    def _load(self, rank: int) -> tuple[int, int]:
        return len(self.open[rank]) + len(self._keyed[rank].waiting), self._keys[rank]

    def _begin(self, rank: int, request: PoolRequest, now: float) -> Attempt:
        attempt = Attempt(rank, request, now)
        self.open[rank][attempt] = None
        return attempt

    def _queue(self, request: PoolRequest) -> None:
        if request.key is None:
            line = self._lines.setdefault(request.ranks, _CallQueue(request.ranks))
        else:
            line = self._keyed[self._rank_of_key(request)]
        line.waiting[request.number] = request
        request.line = line
        self._waiting += 1

    def _unqueue(self, request: PoolRequest) -> None:
        line, request.line = request.line, None
        assert line is not None
        del line.waiting[request.number]
        if not line.waiting and self._lines.get(line.ranks) is line:
            del self._lines[line.ranks]
        self._waiting -= 1

    def _first_for(self, rank: int) -> PoolRequest | None:
        lines = [line for line in self._lines.values() if line.waiting and rank in line.ranks]
        if self._keyed[rank].waiting:
            lines.append(self._keyed[rank])
        return min((line.first() for line in lines), key=lambda entry: entry[0], default=(0, None))[1]

    def _fill(self, ranks: Sequence[int], now: float) -> list[Attempt]:
        """Start waiting calls, in order, while these ranks have room for the first one."""
        begun = []
        left = deque(ranks)
        while left and self._waiting:
            rank = left.popleft()
            while (request := self._first_for(rank)) is not None:
                if len(self.open[rank]) >= request.in_flight or rank not in self._eligible(request.ranks):
                    break
                line = request.line
                self._unqueue(request)
                begun.append(self._begin(rank, request, now))
                # The started call also blocked calls in other queues, whose ranks may have had room all the time.
                if line is not None and self._waiting > len(line.waiting):
                    left.extend(line.ranks)
        return begun

    def _settle(self, now: float) -> list[Attempt]:
        """Choose a rank again for all waiting calls, in their order, after a standing has changed."""
        self._all_well = not self._silent and all(each is Standing.LIVE for each in self.standing)
        waiting = self.waiting()
        for request in waiting:
            self._unqueue(request)
        begun = []
        for request in waiting:
            attempt = self.place(request, now)
            if attempt is None:
                self._queue(request)
            else:
                begun.append(attempt)
        return begun
