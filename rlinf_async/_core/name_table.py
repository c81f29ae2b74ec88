"""``NameTable``: names of one kind in a run, state of node 0's daemon; groups, channels and promised channels have one.

A name is reserved, published with a roster, found and released, and a lookup waits until there is a roster::

    reserve() ──► publish() ──► release()
        └── the owner is gone, or the launch has failed ──► as never reserved

An entry is its *number*: numbers rise by one and are used once. Publishing and releasing go by number, so that nobody
who still has the number of an entry that is released can touch the next one of its name.

A table remembers the names of the latest entries that were released after they were published: a lookup of one fails
at once. Others are waited for, however often they were reserved.

After each change ``settle`` takes out the lookups that have an answer by now. Every lookup is judged by ``look``, when
it is made and whenever something has changed: so a lookup that came early is told the same as one that came late.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from rlinf_async._core import frames
from rlinf_async._core.ended_endpoints import EndedEndpoints
from rlinf_async.errors import ClosedError

Waiter = tuple[int, int]
"""An endpoint, and the number of its request."""

PENDING: Final = object()
"""The result of a lookup that waits."""

MAX_CLOSED_NAMES: Final = 4096
"""Names that are remembered; of more of them the oldest are forgotten, and waited for like names that never were."""

_MEMBERS: Final = -1
"""The owner of a name that belongs to its members."""


@dataclass
class Entry:
    """A reservation of a name; ``roster`` is what processes are told of it, None until it is published."""

    number: int
    name: str
    owner: int
    roster: Any = None

    def answer(self, rank: int | None, after: int) -> Any:
        """The answer to a lookup, or ``PENDING``."""
        return PENDING if self.roster is None else self.roster


E = TypeVar("E", bound=Entry)


class NameTable(Generic[E]):
    """Entries by number and by name, and lookups that wait.

    Args:
        kind: of the names: ``"group"``.
        entry: makes an entry, of its number, name and owner.
    """

    def __init__(self, kind: str, entry: Callable[[int, str, int], E]) -> None:
        self.kind = kind
        self.entries: dict[int, E] = {}
        self.named: dict[str, E] = {}
        self._entry = entry
        self._numbers = itertools.count(1)
        self._closed: dict[str, str] = {}
        """By name, the noun for its last holder: "experience"."""
        self._lookups: dict[Waiter, tuple[str, int | None, int]] = {}

    def __repr__(self) -> str:
        return f"<NameTable of {self.kind}s [{len(self.entries)} entries, {len(self._lookups)} lookups]>"

    def reserve(self, name: str, owner: int) -> int:
        """Number an entry; the first one that is published has the name."""
        entry = self._entry(next(self._numbers), name, owner)
        self.entries[entry.number] = entry
        return entry.number

    def publish(self, name: str, number: int, owner: int, roster: Any) -> Any:
        """Make a roster known. Return None, or the roster of the entry that has the name already.

        Raises:
            KeyError: this owner has not reserved it.
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
        """Return the roster, or ``PENDING``: then ``settle`` will have it.

        Args:
            rank: of a group that members join, a roster with this rank will do.
            after: the endpoint with which that rank has ended: where it comes back, its next one is waited for.

        Raises:
            ClosedError: what had the name is closed.
        """
        if (answer := self.look(name, rank, after)) is PENDING:
            self._lookups[waiter] = name, rank, after
        return answer

    def look(self, name: str, rank: int | None = None, after: int = 0) -> Any:
        """Return what a lookup is told, or ``PENDING``."""
        if (entry := self.named.get(name)) is not None:
            return entry.answer(rank, after)
        if noun := self._closed.get(name):
            raise ClosedError(f"{noun} '{name}' is closed; a new one of that name is found once it is there")
        if after:
            raise ClosedError(f"{self.kind} '{name}' was closed, or has left")
        return PENDING

    def settle(self) -> list[tuple[Waiter, Any]]:
        """Take out the lookups that have an answer by now: a roster, or the error."""
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
        """Forget a lookup, which may have been answered."""
        self._lookups.pop(waiter, None)

    def release(self, number: int, owner: int) -> bool:
        """Free the name. Return False if it was not this owner's."""
        entry = self.entries.get(number)
        if entry is None or entry.owner != owner:
            return False
        self._close(entry)
        return True

    def drop_client(self, gone: int) -> None:
        """Forget the lookups of a process, and what it has reserved and will not publish."""
        self._lookups = {waiter: lookup for waiter, lookup in self._lookups.items() if waiter[0] != gone}
        for entry in [entry for entry in self.entries.values() if entry.owner == gone and entry.roster is None]:
            self._close(entry)

    def drop_owner(self, gone: int) -> None:
        """Free the names of a process."""
        for entry in [entry for entry in self.entries.values() if entry.owner == gone]:
            self._close(entry)

    def names(self) -> list[str]:
        return sorted(name for name, entry in self.named.items() if entry.roster is not None)

    def clients(self) -> set[int]:
        """Everybody for whom something is kept here."""
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

    One that its members join one by one has no other owner than them, and is published while all ``size`` are there;
    a lookup of one member need not wait for the others.
    """

    size: int = 0
    lost: set[int] = field(default_factory=set)
    """Endpoints of ranks that have ended and do not come back."""
    members: dict[int, tuple[int, Any]] = field(default_factory=dict)
    """Owner, and entry of the roster, by rank."""

    def roster_with(self, rank: int | None) -> Any:
        """A roster that has this rank, or all; the places of those who are not there are None."""
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
        """True if this rank has the endpoint, and is to come back once it has ended."""
        return rank["endpoint"] == endpoint and bool(rank.get("supervised")) and endpoint not in self.lost


class GroupNames(NameTable[GroupEntry]):
    """Names of groups: each belongs to whoever reserves it, or to the members that join it."""

    def __init__(self) -> None:
        super().__init__("group", GroupEntry)

    def reserve(self, name: str, owner: int) -> int:
        """Take a name for a group that is about to be launched.

        Raises:
            ValueError: it is taken.
        """
        if name in self.named:
            raise ValueError(
                f"a group named '{name}' exists already: close it first, or give this one another name= in launch()"
            )
        number = super().reserve(name, owner)
        self.named[name] = self.entries[number]
        self._closed.pop(name, None)
        return number

    def join(self, name: str, rank: int, size: int, owner: int, member: Any) -> None:
        """Make a member known that comes by itself.

        Raises:
            ValueError: the name is that of something else, the rank is taken, or others speak of another size.
        """
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
        """Note that a rank that had ended is back, or will not be.

        Args:
            was: the endpoint that it had.
            member: its entry of the roster; None where it does not come back.

        Raises:
            KeyError: this owner has published no such group, or it has no such rank.
        """
        entry = self.entries.get(number)
        if entry is None or entry.owner != owner or entry.roster is None or not 0 <= rank < len(entry.roster):
            raise KeyError(f"this process has no group of number {number} with a rank {rank}")
        if member is None:
            entry.lost.add(was)
        else:
            entry.roster[rank] = member

    def rank_of(self, name: str, rank: int) -> Any:
        """Return the roster's entry of a rank; None where there is none."""
        entry = self.named.get(name)
        roster = None if entry is None else entry.roster_with(rank)
        return roster[rank] if roster is not None and 0 <= rank < len(roster) else None

    def comes_back(self, endpoint: int) -> bool:
        """True if the rank that has this endpoint is to come back once it has ended."""
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
    """A channel or an experience; one that is released is kept until nothing is left of it anywhere.

    Attributes:
        nodes: where its queues have not ended.
        pins: the nodes of the keys of a distributed channel.
        promises: those that have become this channel.
    """

    nodes: set[int] = field(default_factory=set)
    pins: dict[bytes, int] = field(default_factory=dict)
    promises: list[str] = field(default_factory=list)


class ChannelNames(NameTable[ChannelEntry]):
    """Names of channels, one open channel to each, and the channels themselves, by number.

    One that is not in the table has ended, so nothing has to be kept of those.

    Args:
        is_gone: whether an endpoint is no more.
    """

    def __init__(self, is_gone: Callable[[int], bool]) -> None:
        super().__init__("channel", ChannelEntry)
        self._is_gone = is_gone
        self.kept: dict[str, ChannelEntry] = {}
        """By promise, the channel that it has become."""

    def publish(self, name: str, number: int, owner: int, roster: Any) -> Any:
        """As ``NameTable.publish``.

        Raises:
            ValueError: the roster has no nodes.
        """
        nodes = roster.get("nodes") if isinstance(roster, dict) else None
        if not isinstance(nodes, list) or not all(type(node) is int for node in nodes):
            raise ValueError(f"a channel's roster has nodes, got {roster!r}")
        known = super().publish(name, number, owner, roster)
        if known is None:
            self.entries[number].nodes = {node for node in nodes if not self._is_gone(frames.endpoint(node, 0))}
        return known

    def release(self, number: int, owner: int) -> bool:
        """Free the name: anybody may. Return False if there is no such channel, or it was closed before."""
        entry = self.entries.get(number)
        if entry is None or (entry.roster is not None and not self._is_open(entry)):
            return False
        self._unname(entry)
        if not entry.nodes:
            self._forget(entry)
        return True

    def pin(self, number: int, key: bytes, node: int) -> int | None:
        """Return the node that has a key: ``node`` if nobody used the key before; None if nothing can be there."""
        entry = self.entries.get(number)
        if entry is None or not self._is_open(entry):
            return None if entry is None else entry.pins.get(key)
        return entry.pins.setdefault(key, node)

    def end(self, number: int, node: int) -> None:
        """Note that nothing is left of a channel on a node."""
        entry = self.entries.get(number)
        if entry is not None:
            entry.nodes.discard(node)
            if not entry.nodes:
                self._close(entry)

    def lose_node(self, node: int) -> None:
        """Note that the queues of a node are gone; who connects to a channel that is not closed hears of that there."""
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
    """Names of promises: of channels that were passed on before they had a number.

    Each maker counts its promises, and they are called ``"maker.count"``; nobody reserves them, and they are published
    in any order. A maker publishes which channel it is, or why there will be none. A promise that was published, and
    of which no channel is left, is of one that has ended, and is answered with None; so are the promises of a maker
    that is gone.
    """

    def __init__(self, channels: ChannelNames, is_gone: Callable[[int], bool]) -> None:
        super().__init__("promise", Entry)
        self._channels = channels
        self._is_gone = is_gone
        self._published: dict[int, EndedEndpoints] = {}
        """By maker, the counts of all that were published."""
        self._failed: dict[str, str] = {}
        """Why channels that were passed on could not be made, as long as their makers are there."""

    def reserve(self, name: str, owner: int) -> int:
        raise ValueError(f"nobody reserves a promise, such as {name!r}")

    def publish(self, name: str, number: int, owner: int, roster: Any) -> None:
        """Note that it has become the channel of this number; or that there will be none, and ``roster`` says why."""
        maker, count = _promise(name)
        if maker != owner:
            raise ValueError(f"promise {name!r} is another process's")
        if (channel := self._channels.entries.get(number)) is not None:
            self._channels.kept[name] = channel
            channel.promises.append(name)
        if not self._is_gone(maker):
            self._published.setdefault(maker, EndedEndpoints()).add(count)
            if roster:
                self._failed.setdefault(name, roster)  # a copy at the maker says again what it was told

    def look(self, name: str, rank: int | None = None, after: int = 0) -> Any:
        """Return the channel's roster, None if it has ended, or why it could not be made.

        Raises:
            ValueError: that is no promise.
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
