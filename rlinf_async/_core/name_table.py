"""``NameTable``: names of one kind in a run (groups, channels or promised channels), kept by node 0's daemon.

A name is reserved, published with a roster, found and released. A lookup waits for a roster::

    reserve() ──► publish() ──► release()
        └── the owner has ended, or the launch has failed ──► as if never reserved

The *number* of an entry identifies it: numbers rise by one and are never reused. An entry is published and released by
number, so that a process with the number of a released entry cannot affect a later entry of the same name.

A table remembers the most recently released names, if they had been published. A lookup of such a name fails
immediately. A lookup of any other name waits, even if the name was reserved and released without being published.

After each change, ``settle`` removes the lookups that can be answered now. ``look`` judges a lookup both when it is
made and after each change, so that early and late lookups get the same answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from rlinf_async._core import frames
from rlinf_async._core.ended_endpoints import EndedEndpoints
from rlinf_async.errors import ClosedError

Waiter = tuple[int, int]  # endpoint, number of its request

PENDING: Final = object()  # result of a lookup that must wait

# Number of closed names that are remembered. The oldest is forgotten first; a lookup of a forgotten name waits.
MAX_CLOSED_NAMES: Final = 4096

_MEMBERS: Final = -1


@dataclass
class Entry:
    """The reservation of a name; ``roster`` is the answer to lookups, or None until it is published."""

    number: int
    name: str
    owner: int
    roster: Any = None

    def answer(self, rank: int | None, after: int) -> Any:
        return PENDING if self.roster is None else self.roster


E = TypeVar("E", bound=Entry)


class NameTable(Generic[E]):
    """Entries by number and by name, and lookups that wait; ``kind`` is the noun for an entry: ``"group"``."""

    def __init__(self, kind: str, entry: Callable[[int, str, int], E]) -> None:
        self.kind = kind
        self.entries: dict[int, E] = {}
        self.named: dict[str, E] = {}
        self._entry = entry
        self._numbers = itertools.count(1)
        self._closed: dict[str, str] = {}  # maps each closed name to its last holder's noun ("experience")
        self._lookups: dict[Waiter, tuple[str, int | None, int]] = {}

    def __repr__(self) -> str:
        return f"<NameTable of {self.kind}s [{len(self.entries)} entries, {len(self._lookups)} lookups]>"

    def reserve(self, name: str, owner: int) -> int:
        """Return the number of a new entry. The first entry to be published gets the name."""
        entry = self._entry(next(self._numbers), name, owner)
        self.entries[entry.number] = entry
        return entry.number

    def publish(self, name: str, number: int, owner: int, roster: Any) -> Any:
        """Publish a roster. Return None, or the roster that already has the name.

        Raises:
            KeyError: this owner has not reserved the name, or has already published it.
        """
        entry = self.entries.get(number)
        if entry is None or (entry.name, entry.owner, entry.roster) != (name, owner, None):
            raise KeyError(f"{self.kind} '{name}' (number {number}) is not reserved by the process that publishes it")
        if (known := self.named.setdefault(name, entry)) is not entry:
            self._forget(entry)
            return known.roster
        entry.roster = roster
        self._closed.pop(name, None)
        return None

    def find(self, waiter: Waiter, name: str, rank: int | None = None, after: int = 0) -> Any:
        """Return the roster, or ``PENDING`` if ``settle`` will return it later; ClosedError if the entry is closed.

        If members join the group one by one, a roster that includes ``rank`` suffices. If that rank's process was
        endpoint ``after``, which has ended, and the rank is being restarted, the lookup waits for the next process.
        """
        if (answer := self.look(name, rank, after)) is PENDING:
            self._lookups[waiter] = name, rank, after
        return answer

    def look(self, name: str, rank: int | None = None, after: int = 0) -> Any:
        """Return the answer to a lookup, or ``PENDING``."""
        if (entry := self.named.get(name)) is not None:
            return entry.answer(rank, after)
        if noun := self._closed.get(name):
            raise ClosedError(f"{noun} '{name}' is closed; a new one of that name is found once it is there")
        if after:
            raise ClosedError(f"{self.kind} '{name}' was closed, or has left")
        return PENDING

    def settle(self) -> list[tuple[Waiter, Any]]:
        """Remove and return the lookups that can be answered now, each with a roster or an error."""
        settled = []
        for waiter, lookup in list(self._lookups.items()):
            try:
                answer = self.look(*lookup)
            except ClosedError as error:
                answer = error
            if answer is not PENDING:
                del self._lookups[waiter]
                settled.append((waiter, answer))
        return settled

    def cancel(self, waiter: Waiter) -> None:
        self._lookups.pop(waiter, None)

    def release(self, number: int, owner: int) -> bool:
        """Free the name. Return False if it did not belong to this owner."""
        entry = self.entries.get(number)
        if entry is None or entry.owner != owner:
            return False
        self._close(entry)
        return True

    def drop_client(self, gone: int) -> None:
        self._lookups = {waiter: lookup for waiter, lookup in self._lookups.items() if waiter[0] != gone}
        for entry in [entry for entry in self.entries.values() if entry.owner == gone and entry.roster is None]:
            self._close(entry)

    def drop_owner(self, gone: int) -> None:
        for entry in [entry for entry in self.entries.values() if entry.owner == gone]:
            self._close(entry)

    def names(self) -> list[str]:
        return sorted(name for name, entry in self.named.items() if entry.roster is not None)

    def clients(self) -> set[int]:
        return {endpoint for endpoint, _ in self._lookups} | {entry.owner for entry in self.entries.values()}

    def _close(self, entry: E) -> None:
        self._unname(entry)
        self._forget(entry)

    def _unname(self, entry: E) -> None:
        if self.named.get(entry.name) is entry:
            del self.named[entry.name]
            if entry.roster is not None:
                self._closed[entry.name] = self._noun(entry)
                if len(self._closed) > MAX_CLOSED_NAMES:
                    del self._closed[next(iter(self._closed))]

    def _forget(self, entry: E) -> None:
        del self.entries[entry.number]

    def _noun(self, entry: E) -> str:
        return self.kind


@dataclass
class GroupEntry(Entry):
    """A group; its roster has an entry for each rank.

    A group whose members join one by one belongs to them, and is published as long as all ``size`` members are present;
    a lookup of one member need not wait for the others.
    """

    size: int = 0
    lost: set[int] = field(default_factory=set)  # endpoints of ended ranks that will not be restarted
    members: dict[int, tuple[int, Any]] = field(default_factory=dict)  # maps each rank to its owner and roster entry

    def roster_with(self, rank: int | None) -> Any:
        """Return a roster that includes this rank or, for None, all ranks. In a roster, absent ranks are None."""
        if self.roster is not None:
            return self.roster
        if rank is None or (rank not in self.members and rank < self.size):
            return None
        return [self.members[rank][1] if rank in self.members else None for rank in range(self.size)] or None

    def answer(self, rank: int | None, after: int) -> Any:
        roster = self.roster_with(rank)
        if roster is None and after:
            raise ClosedError(f"group '{self.name}' was closed, or has left")
        is_away = after and rank is not None and rank < len(roster) and self.comes_back(roster[rank], after)
        return PENDING if roster is None or is_away else roster

    def comes_back(self, rank: dict[str, Any], endpoint: int) -> bool:
        return rank["endpoint"] == endpoint and bool(rank.get("supervised")) and endpoint not in self.lost


class GroupNames(NameTable[GroupEntry]):
    """The names of groups: each belongs to the process that reserves it, or to the members that join under it."""

    def __init__(self) -> None:
        super().__init__("group", GroupEntry)

    def reserve(self, name: str, owner: int) -> int:
        """Reserve a name for a group that is about to be launched; ValueError if the name is taken."""
        if name in self.named:
            raise ValueError(
                f"a group named '{name}' exists already: close it first, or give this one another name= in launch()"
            )
        number = super().reserve(name, owner)
        self.named[name] = self.entries[number]
        self._closed.pop(name, None)
        return number

    def join(self, name: str, rank: int, size: int, owner: int, member: Any) -> None:
        """Register a member that joins on its own. ValueError if the name or rank is taken, or the size differs."""
        if not 0 <= rank < size:
            raise ValueError(f"'{name}' has {size} members: there is no rank {rank}")
        if name not in self.named:
            self.entries[self.reserve(name, _MEMBERS)].size = size
        entry = self.named[name]
        if entry.owner != _MEMBERS:
            raise ValueError(f"a group named '{name}' exists already: whoever made it did not leave it to join")
        if entry.size != size:
            raise ValueError(f"'{name}' has {entry.size} members, as others say, and not {size}")
        if rank in entry.members:
            raise ValueError(f"rank {rank} of '{name}' is there already")
        entry.members[rank] = (owner, member)
        if len(entry.members) == size:
            entry.roster = [entry.members[rank][1] for rank in range(size)]

    def replace(self, number: int, owner: int, rank: int, was: int, member: Any) -> None:
        """Register a rank's restarted process in place of endpoint ``was``; ``member`` is None if it never returns.

        Raises:
            KeyError: this owner has published no such group, or the group has no such rank.
        """
        entry = self.entries.get(number)
        if entry is None or entry.owner != owner or entry.roster is None or not 0 <= rank < len(entry.roster):
            raise KeyError(f"this process has no group of number {number} with a rank {rank}")
        if member is None:
            entry.lost.add(was)
        else:
            entry.roster[rank] = member

    def rank_of(self, name: str, rank: int) -> Any:
        """Return the roster entry of a rank, or None if there is none."""
        entry = self.named.get(name)
        roster = None if entry is None else entry.roster_with(rank)
        return roster[rank] if roster is not None and 0 <= rank < len(roster) else None

    def comes_back(self, endpoint: int) -> bool:
        return any(entry.comes_back(each, endpoint) for entry in self.entries.values() for each in entry.roster or ())

    def drop_client(self, gone: int) -> None:
        super().drop_client(gone)
        self.drop_owner(gone)
        for entry in list(self.entries.values()):
            if ranks := [rank for rank, (owner, _) in entry.members.items() if owner == gone]:
                for rank in ranks:
                    del entry.members[rank]
                entry.roster = None
                if not entry.members:
                    self._close(entry)

    def clients(self) -> set[int]:
        members = {owner for entry in self.entries.values() for owner, _ in entry.members.values()}
        return (super().clients() | members) - {_MEMBERS}


@dataclass
class ChannelEntry(Entry):
    """A channel or an experience; after its release it is kept until all its queues have ended.

    Attributes:
        nodes: nodes on which its queues have not ended.
        pins: maps each key of a distributed channel to its node.
        promises: names of the promises that this channel has fulfilled.
    """

    nodes: set[int] = field(default_factory=set)
    pins: dict[bytes, int] = field(default_factory=dict)
    promises: list[str] = field(default_factory=list)


class ChannelNames(NameTable[ChannelEntry]):
    """The names of channels, with at most one open channel per name, and all existing channels by number.

    A channel that is not in the table has ended, so ended channels use no memory.
    """

    def __init__(self, is_gone: Callable[[int], bool]) -> None:
        super().__init__("channel", ChannelEntry)
        self._is_gone = is_gone
        self.kept: dict[str, ChannelEntry] = {}  # maps each fulfilled promise to its channel

    def publish(self, name: str, number: int, owner: int, roster: Any) -> Any:
        """Publish a roster, like ``NameTable.publish``; ValueError if the roster has no nodes."""
        nodes = roster.get("nodes") if isinstance(roster, dict) else None
        if not isinstance(nodes, list) or not all(type(node) is int for node in nodes):
            raise ValueError(f"a channel's roster has nodes, got {roster!r}")
        known = super().publish(name, number, owner, roster)
        if known is None:
            self.entries[number].nodes = {node for node in nodes if not self._is_gone(frames.endpoint(node, 0))}
        return known

    def release(self, number: int, owner: int) -> bool:
        """Free the name for any requester. Return False if there is no such channel or it was already closed."""
        entry = self.entries.get(number)
        if entry is None or (entry.roster is not None and not self._is_open(entry)):
            return False
        self._unname(entry)
        if not entry.nodes:
            self._forget(entry)
        return True

    def pin(self, number: int, key: bytes, node: int) -> int | None:
        """Return a key's node (``node`` if the key is new), or None if the channel has ended and has no such key."""
        entry = self.entries.get(number)
        if entry is None or not self._is_open(entry):
            return None if entry is None else entry.pins.get(key)
        return entry.pins.setdefault(key, node)

    def end(self, number: int, node: int) -> None:
        entry = self.entries.get(number)
        if entry is not None:
            entry.nodes.discard(node)
            if not entry.nodes:
                self._close(entry)

    def lose_node(self, node: int) -> None:
        """Record the loss of a node's queues. Clients of channels that are still open get the error on connecting."""
        for entry in list(self.entries.values()):
            entry.nodes.discard(node)
            if not entry.nodes and entry.roster is not None and not self._is_open(entry):
                self._forget(entry)

    def _noun(self, entry: ChannelEntry) -> str:
        return "experience" if "experience" in entry.roster else "channel"

    def _is_open(self, entry: ChannelEntry) -> bool:
        return self.named.get(entry.name) is entry

    def _forget(self, entry: ChannelEntry) -> None:
        super()._forget(entry)
        for promise in entry.promises:
            self.kept.pop(promise, None)


class PromiseNames(NameTable[Entry]):
    """The names of promises: channels that were passed on before they had a number.

    Each maker counts its promises, and names them ``"maker.count"``. Promises are not reserved. They are published in
    any order, each with the number of its channel or the reason why there will be none. A lookup returns None for a
    published promise whose channel has ended, and for all promises of a maker that has ended.
    """

    def __init__(self, channels: ChannelNames, is_gone: Callable[[int], bool]) -> None:
        super().__init__("promise", Entry)
        self._channels = channels
        self._is_gone = is_gone
        self._published: dict[int, EndedEndpoints] = {}  # maps each maker to the counts of its published promises
        # Reasons why promised channels could not be created, kept as long as their makers are alive.
        self._failed: dict[str, str] = {}

    def reserve(self, name: str, owner: int) -> int:
        raise ValueError(f"nobody reserves a promise, such as {name!r}")

    def publish(self, name: str, number: int, owner: int, roster: Any) -> None:
        """Record the number of the promised channel, or its failure (the text in ``roster``)."""
        maker, count = _promise(name)
        if maker != owner:
            raise ValueError(f"promise {name!r} is another process's")
        if (channel := self._channels.entries.get(number)) is not None:
            self._channels.kept[name] = channel
            channel.promises.append(name)
        if not self._is_gone(maker):
            self._published.setdefault(maker, EndedEndpoints()).add(count)
            if roster:
                # Another copy of the promise in its maker's process may publish the same reason again.
                self._failed.setdefault(name, roster)

    def look(self, name: str, rank: int | None = None, after: int = 0) -> Any:
        """Return the channel's roster, None if the channel has ended, or the reason why it could not be created.

        Raises:
            ValueError: the name is not that of a promise.
        """
        maker, count = _promise(name)
        if (channel := self._channels.kept.get(name)) is not None:
            return channel.roster
        if self._is_gone(maker) or count in self._published.get(maker, ()):
            return self._failed.get(name)
        return PENDING

    def drop_client(self, gone: int) -> None:
        super().drop_client(gone)
        self._published.pop(gone, None)
        self._failed = {name: why for name, why in self._failed.items() if _promise(name)[0] != gone}

    def clients(self) -> set[int]:
        return super().clients() | self._published.keys() | {_promise(name)[0] for name, *_ in self._lookups.values()}


def _promise(name: str) -> tuple[int, int]:
    maker, _, count = name.partition(".")
    try:
        return int(maker), int(count)
    except ValueError:
        raise ValueError(f"a promise is its maker's endpoint and a number, got {name!r}") from None
