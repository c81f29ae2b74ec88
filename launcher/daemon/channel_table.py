"""Directory of a run's channels in node 0's daemon: numbers, names, pinned keys, pending lookups and promises.

A channel is its number: numbers rise by one and are used once.  One that is not in the table is that of a channel whose
queues have all ended, so nothing has to be kept of those.  A name stands for one open channel at a time::

    next_number() ──► queues are made ──► add(): it has a name ──► close(): the name is free ──► ended() on every node

A channel that is passed on before it has a number travels as a *promise*: the number of that of its maker, who says
which channel has come of it.  Makers count their promises too: one that was made, is not open and not kept is of a
channel that has ended, or never was.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlinf_async._core import frames
from rlinf_async._core.closed_names import ClosedNames

Waiter = tuple[int, int]
"""An endpoint, and its ask."""

Promise = tuple[int, int]
"""The endpoint that has made it, and which of its promises it is."""


@dataclass
class Entry:
    """One channel.

    Attributes:
        roster: what processes are told of it.
        nodes: where its queues have not ended.
        pins: the nodes of the keys of a distributed channel.
        promises: those that were kept with it.
    """

    number: int
    name: str
    owner: int
    roster: dict[str, Any]
    nodes: set[int]
    closed: bool = False
    pins: dict[bytes, int] = field(default_factory=dict)
    promises: list[Promise] = field(default_factory=list)


class ChannelTable:
    """Numbers, names and promises; what has to be told to whom is returned.

    Args:
        is_gone: whether an endpoint is no more.
    """

    def __init__(self, is_gone: Callable[[int], bool]) -> None:
        self._is_gone = is_gone
        self._numbers = itertools.count(1)
        self._entries: dict[int, Entry] = {}
        self._named: dict[str, Entry] = {}
        self._closed = ClosedNames("channel")
        self._finders: dict[str, list[Waiter]] = {}
        self._made: dict[int, int] = {}
        """The latest promise of each endpoint."""
        self._open: set[Promise] = set()
        """Those that were made, and of which their makers have not said more."""
        self._kept: dict[Promise, Entry] = {}
        self._failed: dict[Promise, str] = {}
        """Why channels that were passed on could not be made, as long as their makers are there."""
        self._redeemers: dict[Promise, list[Waiter]] = {}

    def __repr__(self) -> str:
        return f"<ChannelTable [{len(self._entries)} channels, {len(self._open)} open promises]>"

    def next_number(self) -> int:
        return next(self._numbers)

    # -- channels -----------------------------------------------------------------------------------------------

    def add(self, name: str, owner: int, roster: dict[str, Any]) -> tuple[dict[str, Any], list[Waiter]]:
        """Makes a channel known; what is known by its name, which is another one if it was taken; who waits for it.

        Raises:
            ValueError: the roster has no number and nodes, or the number of another channel.
        """
        known = self._named.get(name)
        if known is not None:
            return known.roster, []
        number = roster.get("number") if isinstance(roster, dict) else None
        if type(number) is not int or number in self._entries or not _are_numbers(roster.get("nodes")):
            raise ValueError(f"a channel's roster has nodes, and a number that no other one has, got {roster!r}")
        self._closed.discard(name)
        nodes = {node for node in roster["nodes"] if not self._is_gone(frames.endpoint(node, 0))}
        self._named[name] = self._entries[number] = Entry(number, name, owner, roster, nodes)
        return roster, self._finders.pop(name, [])

    def find(self, name: str, waiter: Waiter) -> dict[str, Any] | None:
        """The channel of a name; None if there is none, and then the waiter is told when there is.

        Raises:
            ClosedError: the channel of that name is closed.
        """
        known = self._named.get(name)
        if known is None:
            self._closed.check(name)
            self._finders.setdefault(name, []).append(waiter)
        return None if known is None else known.roster

    def pin(self, number: int, key: bytes, node: int) -> int | None:
        """The node that has a key: ``node`` if the key was not used before; None if nothing can be there."""
        known = self._entries.get(number)
        if known is None or known.closed:
            return None if known is None else known.pins.get(key)
        return known.pins.setdefault(key, node)

    def close(self, number: int) -> bool:
        """The name is free.  False if there is no such channel, or it was closed before."""
        known = self._entries.get(number)
        if known is None or known.closed:
            return False
        known.closed = True
        del self._named[known.name]
        self._closed.add(known.name)
        if not known.nodes:
            self._forget(known)
        return True

    def ended(self, number: int, node: int) -> None:
        """Nothing is left of a channel on a node."""
        known = self._entries.get(number)
        if known is not None:
            known.nodes.discard(node)
            if not known.nodes:
                self.close(number)
                self._forget(known)

    def lose_node(self, node: int) -> None:
        """Its queues are gone; who connects to a channel that is not closed hears of that there."""
        for known in list(self._entries.values()):
            known.nodes.discard(node)
            if known.closed and not known.nodes:
                self._forget(known)

    def _forget(self, known: Entry) -> None:
        self._entries.pop(known.number, None)
        for promise in known.promises:
            self._kept.pop(promise, None)

    def names(self) -> list[str]:
        return sorted(self._named)

    # -- promises -----------------------------------------------------------------------------------------------

    def promise(self, maker: int, promise: int) -> None:
        """A maker has passed on a channel that has no number yet.

        Raises:
            ValueError: it is not its next promise.
        """
        if promise != self._made.get(maker, 0) + 1:
            raise ValueError(f"promises are numbered 1, 2, 3, ...: {promise!r} is not the next one of {maker}")
        self._made[maker] = promise
        self._open.add((maker, promise))

    def keep(
        self, maker: int, promise: int, number: int | None, why: str
    ) -> tuple[dict[str, Any] | str | None, list[Waiter]]:
        """It is this channel, or there will be none, and why it could not be made; what is to be told, and to whom."""
        self._open.discard((maker, promise))
        known = None if number is None else self._entries.get(number)
        if known is not None:
            self._kept[maker, promise] = known
            known.promises.append((maker, promise))
        if why:
            self._failed.setdefault((maker, promise), why)  # a copy at the maker says again what it was told
        return (why or None) if known is None else known.roster, self._redeemers.pop((maker, promise), [])

    def redeem(self, maker: int, promise: int, waiter: Waiter) -> tuple[bool, dict[str, Any] | str | None]:
        """Whether it is known what has come of a promise, and the channel, or why it could not be made.

        Otherwise the waiter is told when it is known.

        Raises:
            ValueError: that is no promise.
        """
        if not _are_numbers([maker, promise]):
            raise ValueError(f"a promise is an endpoint and a number, got {maker!r} and {promise!r}")
        known = self._kept.get((maker, promise))
        if known is not None:
            return True, known.roster
        is_pending = (maker, promise) in self._open or promise > self._made.get(maker, 0)
        if self._is_gone(maker) or not is_pending:
            return True, self._failed.get((maker, promise))
        self._redeemers.setdefault((maker, promise), []).append(waiter)
        return False, None

    # -- ends ---------------------------------------------------------------------------------------------------

    def forget_waiters(self, are_meant: Callable[[Waiter], bool]) -> None:
        """They do not wait any more."""
        for waiting in (self._finders, self._redeemers):
            for what, waiters in list(waiting.items()):
                left = [waiter for waiter in waiters if not are_meant(waiter)]
                if left:
                    waiting[what] = left  # type: ignore[index]
                else:
                    del waiting[what]  # type: ignore[arg-type]

    def drop_client(self, gone: int) -> list[Waiter]:
        """A process is no more: its promises will not be kept.  Returns the waiters for them."""
        self.forget_waiters(lambda waiter: waiter[0] == gone)
        self._made.pop(gone, None)
        self._open = {promise for promise in self._open if promise[0] != gone}
        self._failed = {promise: why for promise, why in self._failed.items() if promise[0] != gone}
        broken = [promise for promise in self._redeemers if promise[0] == gone]
        return [waiter for promise in broken for waiter in self._redeemers.pop(promise)]

    def drop_owner(self, gone: int) -> None:
        """Closes the channels of a driver that is gone, or of a worker whose group is."""
        for known in [known for known in self._entries.values() if known.owner == gone]:
            self.close(known.number)
            self._forget(known)

    def clients(self) -> set[int]:
        """Everybody for whom something is kept here."""
        waiting = (*self._finders.values(), *self._redeemers.values())
        clients = {endpoint for waiters in waiting for endpoint, _ in waiters}
        clients |= {known.owner for known in self._entries.values()}
        return clients | self._made.keys() | {maker for maker, _ in self._redeemers}


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int for value in values)
