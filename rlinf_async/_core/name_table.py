"""``NameTable``: names of one kind in a run, state of node 0's daemon; groups, channels and promised channels have one.

A name is reserved, published with a roster, found and released.  A lookup waits until there is a roster::

    reserve() ──► publish() ──► release()
        └── the owner has ended, or the launch has failed ──► as never reserved

The *number* of an entry identifies it: numbers rise by one and are used once.  Publishing and releasing go by number,
so that a process with the number of a released entry cannot affect a later entry of the same name.

A table remembers the names of the latest entries that were released after they were published, and a lookup of one
fails at once.  A lookup of any other name waits, however often the name was reserved.

After each change ``settle`` takes out the lookups that have an answer by now.  ``look`` judges a lookup when it is made
and after each change, so that early and late lookups get the same answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from rlinf_async._core import frames
from rlinf_async._core.ended_endpoints import EndedEndpoints
from rlinf_async.errors import ClosedError

Waiter = tuple[int, int]  # endpoint, and the number of its request

PENDING: Final = object()  # result of a lookup that waits

# Number of closed names that are remembered; beyond it the oldest are forgotten, and lookups of them wait.
MAX_CLOSED_NAMES: Final = 4096

_MEMBERS: Final = -1


@dataclass
class Entry:
    """Reservation of a name; ``roster`` is the answer to lookups, None until it is published."""

    number: int
    name: str
    owner: int
    roster: Any = None

    def answer(self, rank: int | None, after: int) -> Any:
        return PENDING if self.roster is None else self.roster


E = TypeVar("E", bound=Entry)


class NameTable(Generic[E]):
    """Entries by number and by name, and lookups that wait; ``kind`` is the noun for the thing: ``"group"``."""

    def __init__(self, kind: str, entry: Callable[[int, str, int], E]) -> None:
        self.kind = kind
        self.entries: dict[int, E] = {}
        self.named: dict[str, E] = {}
        self._entry = entry
        self._numbers = itertools.count(1)
        self._closed: dict[str, str] = {}  # noun ("experience") of the last holder of each closed name
        self._lookups: dict[Waiter, tuple[str, int | None, int]] = {}

    def __repr__(self) -> str:
        return f"<NameTable of {self.kind}s [{len(self.entries)} entries, {len(self._lookups)} lookups]>"

    def reserve(self, name: str, owner: int) -> int:
        """Return the number of a new entry; the first entry that is published gets the name."""
        entry = self._entry(next(self._numbers), name, owner)
        self.entries[entry.number] = entry
        return entry.number

    def publish(self, name: str, number: int, owner: int, roster: Any) -> Any:
        """Publish a roster. Return None, or the roster that has the name; KeyError unless reserved by this owner."""
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

        A roster with ``rank`` is enough for a group that members join.  If the process ``after`` of that rank has ended
        and the rank is restarted, the lookup waits for its successor.
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
        """Take out the lookups that have an answer by now, each with a roster or an error."""
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
        """Free the name. Return False if it was not this owner's."""
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

    A group that its members join one by one belongs to them, and is published while all ``size`` are present; a lookup
    of one member need not wait for the others.
    """

    size: int = 0
    lost: set[int] = field(default_factory=set)  # endpoints of ended ranks that will not be restarted
    members: dict[int, tuple[int, Any]] = field(default_factory=dict)  # owner and roster entry, by rank

    def roster_with(self, rank: int | None) -> Any:
        """Return a roster that has this rank, or all ranks; absent ranks are None in it."""
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
    """Names of groups: each belongs to the process that reserves it, or to the members that join it."""

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
        """Register a member that joins by itself; ValueError if name or rank is taken, or the size is another."""
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
        """Register the restarted process of a rank in place of the endpoint ``was``; None if there will be none.

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
        """Return the roster entry of a rank, or None."""
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
    """A channel or an experience; a released one is kept until all its queues have ended.

    Attributes:
        nodes: nodes where its queues have not ended.
        pins: node by key, for a distributed channel.
        promises: promises that this channel has fulfilled.
    """

    nodes: set[int] = field(default_factory=set)
    pins: dict[bytes, int] = field(default_factory=dict)
    promises: list[str] = field(default_factory=list)


class ChannelNames(NameTable[ChannelEntry]):
    """Names of channels, at most one open channel per name, and all existing channels by number.

    A channel that is not in the table has ended, so ended channels take no memory.
    """

    def __init__(self, is_gone: Callable[[int], bool]) -> None:
        super().__init__("channel", ChannelEntry)
        self._is_gone = is_gone
        self.kept: dict[str, ChannelEntry] = {}  # channels by the promise that they have fulfilled

    def publish(self, name: str, number: int, owner: int, roster: Any) -> Any:
        """Publish a roster, as ``NameTable.publish``; ValueError if it has no nodes."""
        nodes = roster.get("nodes") if isinstance(roster, dict) else None
        if not isinstance(nodes, list) or not all(type(node) is int for node in nodes):
            raise ValueError(f"a channel's roster has nodes, got {roster!r}")
        known = super().publish(name, number, owner, roster)
        if known is None:
            self.entries[number].nodes = {node for node in nodes if not self._is_gone(frames.endpoint(node, 0))}
        return known

    def release(self, number: int, owner: int) -> bool:
        """Free the name, on behalf of any process. Return False if the channel does not exist or was closed before."""
        entry = self.entries.get(number)
        if entry is None or (entry.roster is not None and not self._is_open(entry)):
            return False
        self._unname(entry)
        if not entry.nodes:
            self._forget(entry)
        return True

    def pin(self, number: int, key: bytes, node: int) -> int | None:
        """Return the node of a key: ``node`` if the key is new, None if the channel has ended without items for it."""
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
        """Record the loss of a node's queues; a process that connects to a still open channel gets the error there."""
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
    """Names of promises: channels that were passed on before they had a number.

    Each maker counts its promises, and names them ``"maker.count"``.  Promises are not reserved, and are published in
    any order, each with the number of its channel or the reason why there will be none.  The answer is None for a
    published promise whose channel has ended, and for every promise of a maker that has ended.
    """

    def __init__(self, channels: ChannelNames, is_gone: Callable[[int], bool]) -> None:
        super().__init__("promise", Entry)
        self._channels = channels
        self._is_gone = is_gone
        self._published: dict[int, EndedEndpoints] = {}  # counts of published promises, by their maker
        # Reasons why promised channels could not be made, kept as long as their makers live.
        self._failed: dict[str, str] = {}

    def reserve(self, name: str, owner: int) -> int:
        raise ValueError(f"nobody reserves a promise, such as {name!r}")

    def publish(self, name: str, number: int, owner: int, roster: Any) -> None:
        """Record the number of the promised channel, or in ``roster`` the reason why there will be none."""
        maker, count = _promise(name)
        if maker != owner:
            raise ValueError(f"promise {name!r} is another process's")
        if (channel := self._channels.entries.get(number)) is not None:
            self._channels.kept[name] = channel
            channel.promises.append(name)
        if not self._is_gone(maker):
            self._published.setdefault(maker, EndedEndpoints()).add(count)
            if roster:
                # A copy of the promise in its maker's process may publish the same reason again.
                self._failed.setdefault(name, roster)

    def look(self, name: str, rank: int | None = None, after: int = 0) -> Any:
        """Return the channel's roster, None if the channel has ended, or why it could not be made.

        Raises:
            ValueError: the name is not a promise's.
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
