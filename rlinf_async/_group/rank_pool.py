"""``RankPool``: calls that any rank of a group may take, by rank, in line and by key: plain state without IO."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

MAX_KEYS: Final = 1 << 16
"""Conversations whose rank is remembered; beyond, the one that has been quiet for longest is forgotten."""

UNBOUNDED: Final = 1 << 62


class Standing(Enum):
    """State of a rank, as the pool knows it."""

    LIVE = auto()
    AWAY = auto()
    """It is being started, for the first time or again: calls wait for it only where no rank lives."""
    GONE = auto()
    """It does not come back: a call goes there, and fails, only where no rank lives or comes back."""


@dataclass(eq=False)
class _Line:
    """Calls that wait for room at the same ranks, by number, the oldest first."""

    ranks: tuple[int, ...]
    waiting: OrderedDict[int, Wish] = field(default_factory=OrderedDict)

    def first(self) -> tuple[int, Wish]:
        return next(iter(self.waiting.items()))


@dataclass(eq=False, slots=True)
class Wish:
    """A call as the pool sees it.

    Attributes:
        ranks: those that may take it.
        in_flight: calls that its rank may have open, this one among them.
        stall_timeout: seconds without a sign of life of its rank, after which the call is lost; None for no limit.
        key: of its conversation, which stays at one rank; None for none.
        owner: the call itself, for who uses the pool.
        number: its place among the calls that wait.
        line: where it waits; None where it does not.
    """

    ranks: tuple[int, ...]
    in_flight: int = UNBOUNDED
    stall_timeout: float | None = None
    key: Hashable = None
    owner: Any = None
    number: int = 0
    line: _Line | None = None


@dataclass(eq=False, slots=True)
class Attempt:
    """A call at a rank, until that rank has given its last answer to it.

    Attributes:
        wish: the call; None once nobody waits for this answer any more.
        since: when the rank began to owe a sign of life; None while it owes none.
    """

    rank: int
    wish: Wish | None
    since: float | None

    def detach(self) -> None:
        """Give the answer up; the call keeps its place at the rank until it has come."""
        self.wish = self.since = None


class RankPool:
    """The calls of one process on any rank of a group.

    A call goes to the live rank with the fewest open ones, of equals to the first: a process that has just run is the
    quickest.  Where all have theirs ``in_flight``, calls wait; none takes a place that an earlier one could have.  The
    first call of a conversation binds its key to a rank, of equals to the one with the fewest keys; later ones wait for
    that rank alone, while it lives and is not silent.

    Methods that may make room return the attempts that begin because of it, in order.

    Attributes:
        standing: by rank.
        open: by rank, the calls that it has not answered.
        counts_from: silence before this moment is none: a rank of the run stood in the debugger.
    """

    def __init__(self, size: int) -> None:
        self.standing = [Standing.AWAY] * size
        self.open: list[dict[Attempt, None]] = [{} for _ in range(size)]
        self.counts_from = -math.inf
        self._heard = [0.0] * size
        self._silent: set[int] = set()
        """Ranks at which a call has stalled, and from which nothing has come since."""
        self._numbers = itertools.count(1)
        self._all_well = False
        self._lines: dict[tuple[int, ...], _Line] = {}
        self._keyed = [_Line((rank,)) for rank in range(size)]
        self._waiting = 0
        self._bound: OrderedDict[tuple[tuple[int, ...], Hashable], int] = OrderedDict()
        """Ranks of conversations; equal keys of two views are two."""
        self._keys = [0] * size
        """By rank, how many are bound to it."""

    def __repr__(self) -> str:
        calls = ", ".join(str(len(attempts)) for attempts in self.open)
        return f"<RankPool [{calls} open, {self._waiting} waiting]>"

    # -- calls --------------------------------------------------------------------------------------------------

    def place(self, wish: Wish, now: float) -> Attempt | None:
        """Begin a call at a rank that has room. Return None where it has to wait."""
        candidates: Sequence[int] = wish.ranks if self._all_well else self._eligible(wish.ranks)
        if wish.key is not None and candidates:
            candidates = (self._rank_of_key(wish),)
        best, least = -1, wish.in_flight
        for rank in candidates:
            count = len(self.open[rank])
            if count < least and (
                not self._waiting or self._first_for(rank) is None
            ):  # else an earlier call goes first
                best, least = rank, count
                if not count:
                    break
        return None if best < 0 else self._begin(best, wish, now)

    def submit(self, wish: Wish, now: float) -> Attempt | None:
        """As ``place``; a call that has to wait does so from now on."""
        attempt = self.place(wish, now)
        if attempt is None:
            wish.number = next(self._numbers)
            self._queue(wish)
        return attempt

    def withdraw(self, wish: Wish, now: float) -> list[Attempt] | None:
        """Take a call out of those that wait. Return None if it does not wait."""
        if (line := wish.line) is None:
            return None
        self._unqueue(wish)
        return self._fill(line.ranks, now)  # behind it one may have waited that wants less room

    def waiting(self) -> list[Wish]:
        """The calls that wait, the oldest first."""
        found = [wish for line in (*self._lines.values(), *self._keyed) for wish in line.waiting.values()]
        return sorted(found, key=lambda wish: wish.number)

    # -- signs of life ------------------------------------------------------------------------------------------

    def end(self, attempt: Attempt, now: float) -> list[Attempt]:
        """Note the last answer to a call, or that it could not be sent."""
        rank = attempt.rank
        self.open[rank].pop(attempt, None)
        if self._silent:
            begun = self.hear(rank, now)
            return [*begun, *self._fill((rank,), now)]
        self._heard[rank] = now
        return self._fill((rank,), now) if self._waiting else []

    def hear(self, rank: int, now: float) -> list[Attempt]:
        """Note an answer or an item."""
        self._heard[rank] = now
        if rank not in self._silent:
            return []
        self._silent.discard(rank)
        return self._settle(now)

    def set_standing(self, standing: Sequence[Standing], now: float) -> list[Attempt]:
        """Note which ranks live, are away, and are gone."""
        changed = {rank for rank, each in enumerate(standing) if each is not self.standing[rank]}
        self.standing = list(standing)
        self._silent -= changed
        return self._settle(now) if changed else []

    # -- stalls -------------------------------------------------------------------------------------------------

    def find_stalled(self, now: float) -> list[Attempt]:
        """Find the calls that their ranks have lost by silence; new calls avoid these ranks until they are heard."""
        found = []
        for rank, owed in self._owed():
            silence = now - self._owes_since(rank)
            if lost := [attempt for attempt, timeout in owed if silence >= timeout]:
                self._silent.add(rank)
                self._all_well = False
                found += lost
        return found

    def begin_elsewhere(self, now: float) -> list[Attempt]:
        """Begin calls that wait and may go elsewhere, now that ranks were found silent."""
        return self._settle(now)

    def next_stall(self) -> float | None:
        """The moment at which the next call may be found stalled."""
        moments = [self._owes_since(rank) + min(timeout for _, timeout in owed) for rank, owed in self._owed()]
        return min(moments, default=None)

    def _owed(self) -> Iterator[tuple[int, list[tuple[Attempt, float]]]]:
        """Ranks that owe a sign of life to calls with a limit for that, and these calls with their limits."""
        for rank, attempts in enumerate(self.open):
            owed = [
                (each, each.wish.stall_timeout)
                for each in attempts
                if each.since is not None and each.wish is not None and each.wish.stall_timeout is not None
            ]
            if owed:
                yield rank, owed

    def _owes_since(self, rank: int) -> float:
        since = min(each.since for each in self.open[rank] if each.since is not None)
        return max(self._heard[rank], since, self.counts_from)

    # -- choice -------------------------------------------------------------------------------------------------

    def _eligible(self, ranks: Sequence[int]) -> Sequence[int]:
        """The best of these ranks: those that live, else silent ones, else none while one may come back."""
        live = [rank for rank in ranks if self.standing[rank] is Standing.LIVE]
        if live:
            return [rank for rank in live if rank not in self._silent] or live
        return () if any(self.standing[rank] is Standing.AWAY for rank in ranks) else ranks

    def _rank_of_key(self, wish: Wish) -> int:
        """The rank of a conversation; a new one, and one whose rank is lost, is bound to the least loaded."""
        conversation = wish.ranks, wish.key
        old = self._bound.pop(conversation, None)
        eligible = self._eligible(wish.ranks) or [rank for rank in wish.ranks if self.standing[rank] is Standing.AWAY]
        rank = old if old is not None and old in eligible else min(eligible, key=self._load)
        self._bound[conversation] = rank  # the last one now
        self._keys[rank] += 1
        if old is None and len(self._bound) > MAX_KEYS:
            old = self._bound.popitem(last=False)[1]
        if old is not None:
            self._keys[old] -= 1
        return rank

    def _load(self, rank: int) -> tuple[int, int]:
        return len(self.open[rank]) + len(self._keyed[rank].waiting), self._keys[rank]

    def _begin(self, rank: int, wish: Wish, now: float) -> Attempt:
        attempt = Attempt(rank, wish, now)
        self.open[rank][attempt] = None
        return attempt

    def _queue(self, wish: Wish) -> None:
        if wish.key is None:
            line = self._lines.setdefault(wish.ranks, _Line(wish.ranks))
        else:
            line = self._keyed[self._rank_of_key(wish)]
        line.waiting[wish.number] = wish
        wish.line = line
        self._waiting += 1

    def _unqueue(self, wish: Wish) -> None:
        line, wish.line = wish.line, None
        assert line is not None
        del line.waiting[wish.number]
        if not line.waiting and self._lines.get(line.ranks) is line:
            del self._lines[line.ranks]
        self._waiting -= 1

    def _first_for(self, rank: int) -> Wish | None:
        """The oldest of the calls that wait and could go to this rank."""
        lines = [line for line in self._lines.values() if line.waiting and rank in line.ranks]
        if self._keyed[rank].waiting:
            lines.append(self._keyed[rank])
        return min((line.first() for line in lines), key=lambda entry: entry[0], default=(0, None))[1]

    def _fill(self, ranks: Sequence[int], now: float) -> list[Attempt]:
        """Begin calls that wait, as long as these ranks have room for the first of them."""
        begun = []
        left = deque(ranks)
        while left and self._waiting:
            rank = left.popleft()
            while (wish := self._first_for(rank)) is not None:
                if len(self.open[rank]) >= wish.in_flight or rank not in self._eligible(wish.ranks):
                    break
                line = wish.line
                self._unqueue(wish)
                begun.append(self._begin(rank, wish, now))
                # It was also ahead of calls of other lines, at ranks that may have had room for these all the time.
                if line is not None and self._waiting > len(line.waiting):
                    left.extend(line.ranks)
        return begun

    def _settle(self, now: float) -> list[Attempt]:
        """A rank has another standing: choose anew for all calls that wait, in their order."""
        self._all_well = not self._silent and all(each is Standing.LIVE for each in self.standing)
        waiting = self.waiting()
        for wish in waiting:
            self._unqueue(wish)
        begun = []
        for wish in waiting:
            attempt = self.place(wish, now)
            if attempt is None:
                self._queue(wish)
            else:
                begun.append(attempt)
        return begun
