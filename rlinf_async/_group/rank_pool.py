"""``RankPool``: plain state that assigns calls to ranks by load and key, and queues calls that find no room."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

# Number of conversations whose rank is remembered; a new one evicts the least recently used.
MAX_KEYS: Final = 1 << 16

UNBOUNDED: Final = 1 << 62


class Standing(Enum):
    """The state of a rank as known to the pool."""

    LIVE = auto()
    # The rank is being started or restarted; calls wait for it only if no other rank is alive.
    AWAY = auto()
    # The rank will not be restarted. A call is sent to it, and fails, only if no rank is alive or may return.
    GONE = auto()


@dataclass(eq=False)
class _CallQueue:
    ranks: tuple[int, ...]
    waiting: OrderedDict[int, PoolRequest] = field(default_factory=OrderedDict)

    def first(self) -> tuple[int, PoolRequest]:
        return next(iter(self.waiting.items()))


@dataclass(eq=False, slots=True)
class PoolRequest:
    """A call in the pool.

    Attributes:
        ranks: ranks that may take the call.
        in_flight: limit on the number of its rank's open calls, this call included.
        stall_timeout: seconds without a sign of life from its rank after which the call is lost; None for no limit.
        key: key of its conversation, which stays with one rank; None if it belongs to no conversation.
        owner: the caller's object for the call.
        number: position among the waiting calls.
        line: queue in which the call waits; None if it is not waiting.
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
    """A call at a rank, until the rank's final answer.

    Attributes:
        request: the call; None once the answer is no longer needed.
        since: time since which a sign of life is expected; None while none is expected.
    """

    rank: int
    request: PoolRequest | None
    since: float | None

    def detach(self) -> None:
        """Ignore the answer. Until the answer arrives, the call counts as open at the rank."""
        self.request = self.since = None


class RankPool:
    """The calls of one process that any rank of a group may take.

    A call goes to the live rank with the fewest open calls, and among equals to the first, because the most recently
    active process is the fastest. If all ranks have ``in_flight`` calls, the call waits; a call never takes room that
    an earlier call could use. The first call of a conversation binds its key to a rank; among equally loaded ranks, to
    the one with the fewest keys. Later calls wait for this rank only, as long as it is alive and not silent.

    Methods that may make room return the resulting new attempts, in order.

    Attributes:
        standing: state of each rank.
        open: unanswered calls of each rank.
        counts_from: time before which silence is ignored, because one of the run's ranks was in the debugger.
    """

    def __init__(self, size: int) -> None:
        self.standing = [Standing.AWAY] * size
        self.open: list[dict[Attempt, None]] = [{} for _ in range(size)]
        self.counts_from = -math.inf
        self._last_sign = [0.0] * size
        # Ranks that have a stalled call and have sent nothing since it stalled.
        self._silent: set[int] = set()
        self._numbers = itertools.count(1)
        self._all_well = False
        self._lines: dict[tuple[int, ...], _CallQueue] = {}
        self._keyed = [_CallQueue((rank,)) for rank in range(size)]
        self._waiting = 0
        # Maps each conversation to its rank; equal keys in two views are different conversations.
        self._bound: OrderedDict[tuple[tuple[int, ...], Hashable], int] = OrderedDict()
        self._keys = [0] * size

    def __repr__(self) -> str:
        calls = ", ".join(str(len(attempts)) for attempts in self.open)
        return f"<RankPool [{calls} open, {self._waiting} waiting]>"

    # -- calls --------------------------------------------------------------------------------------------------

    def place(self, request: PoolRequest, now: float) -> Attempt | None:
        """Start a call at a rank that has room. Return None if the call must wait."""
        candidates: Sequence[int] = request.ranks if self._all_well else self._eligible(request.ranks)
        if request.key is not None and candidates:
            candidates = (self._rank_of_key(request),)
        best, least = -1, request.in_flight
        for rank in candidates:
            count = len(self.open[rank])
            # A rank for which an earlier call is waiting must take that call first.
            if count < least and (not self._waiting or self._first_for(rank) is None):
                best, least = rank, count
                if not count:
                    break
        return None if best < 0 else self._begin(best, request, now)

    def submit(self, request: PoolRequest, now: float) -> Attempt | None:
        """Start a call as ``place`` does, or queue it if it must wait."""
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
        return self._fill(line.ranks, now)  # a later call with a larger in_flight may now fit

    def waiting(self) -> list[PoolRequest]:
        found = [request for line in (*self._lines.values(), *self._keyed) for request in line.waiting.values()]
        return sorted(found, key=lambda request: request.number)

    # -- signs of life ------------------------------------------------------------------------------------------

    def end(self, attempt: Attempt, now: float) -> list[Attempt]:
        """Record the last answer to a call, or that the call could not be sent."""
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
        """Return the calls of ranks silent for too long; new calls avoid these ranks until they show a sign of life."""
        found = []
        for rank, owed in self._owed():
            silence = now - self._owes_since(rank)
            if lost := [attempt for attempt, timeout in owed if silence >= timeout]:
                self._silent.add(rank)
                self._all_well = False
                found += lost
        return found

    def begin_elsewhere(self, now: float) -> list[Attempt]:
        """Start waiting calls that may go to other ranks, after some ranks were found silent."""
        return self._settle(now)

    def next_stall(self) -> float | None:
        moments = [self._owes_since(rank) + min(timeout for _, timeout in owed) for rank, owed in self._owed()]
        return min(moments, default=None)

    def _owed(self) -> Iterator[tuple[int, list[tuple[Attempt, float]]]]:
        """Yield each rank that must give a sign of life, and its calls that have a stall timeout, with the timeouts."""
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
        """Return the live ranks, preferably not silent; without live ranks, none if any rank may return, else all."""
        live = [rank for rank in ranks if self.standing[rank] is Standing.LIVE]
        if live:
            return [rank for rank in live if rank not in self._silent] or live
        return () if any(self.standing[rank] is Standing.AWAY for rank in ranks) else ranks

    def _rank_of_key(self, request: PoolRequest) -> int:
        """Return a conversation's rank; if it is new or has lost its rank, first bind it to the least loaded rank."""
        conversation = request.ranks, request.key
        old = self._bound.pop(conversation, None)
        eligible = self._eligible(request.ranks) or [
            rank for rank in request.ranks if self.standing[rank] is Standing.AWAY
        ]
        rank = old if old is not None and old in eligible else min(eligible, key=self._load)
        self._bound[conversation] = rank  # insert at the end, because the first entry is evicted first
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
        """Start waiting calls, in order, while these ranks have room for the first call."""
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
                # The started call also blocked calls in other queues, whose ranks may already have room.
                if line is not None and self._waiting > len(line.waiting):
                    left.extend(line.ranks)
        return begun

    def _settle(self, now: float) -> list[Attempt]:
        """Reassign all waiting calls to ranks, in order, after a change of standing."""
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
