"""Directory of group names, state of node 0's daemon: reserve, publish, join, look up, release; lookups that wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from rlinf_async._core.closed_names import ClosedNames
from rlinf_async.errors import ClosedError


@dataclass
class Entry:
    """A group name.  It is reserved at launch and published once its workers exist.

    One that its members join one by one has no other owner than them, and is published while all ``size`` are there;
    a lookup of one member need not wait for the others.
    """

    owner: int
    roster: Any = None
    published: bool = False
    supervised: bool = False
    """Its ranks come back when they have ended."""
    size: int = 0
    lost: set[int] = field(default_factory=set)
    """Endpoints of ranks that have ended and do not come back."""
    members: dict[int, tuple[int, Any]] = field(default_factory=dict)
    """Owner, and entry of the roster, by rank."""

    def roster_with(self, rank: int | None) -> Any:
        """A roster that has this rank, or all; the places of those who are not there are None."""
        if self.published:
            return self.roster
        if rank is None or (rank not in self.members and rank < self.size):
            return None
        return [self.members[rank][1] if rank in self.members else None for rank in range(self.size)] or None


NO_HOLDER: Final = -1
"""The owner of a name that belongs to its members."""


@dataclass
class Directory:
    """Group names with their rosters, and lookups that wait; every method says what to do next.

    A lookup of a name that does not exist yet waits for it; a name is free again as soon as it is released or its
    owner is gone.

    A published rank may end and come back with another endpoint: ``replace``, for which a lookup may wait as well.

    Example:
        directory.reserve("rollout", owner=7)          # True: it was free
        directory.lookup("rollout", "a waiter")        # None: not yet
        directory.publish("rollout", 7, roster)        # ["a waiter"]: tell them
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    waiters: dict[str, list[Any]] = field(default_factory=dict)
    wanted: dict[tuple[str, Any], tuple[int, int]] = field(default_factory=dict)
    """By name and waiter, of those who look for one rank: which, and the endpoint with which it has ended, or 0."""
    closed: ClosedNames = field(default_factory=lambda: ClosedNames("group"))
    """Names that were published and are free again; not those that members join."""

    def reserve(self, name: str, owner: int) -> bool:
        if name in self.entries:
            return False
        self.entries[name] = Entry(owner)
        self.closed.discard(name)
        return True

    def publish(self, name: str, owner: int, roster: Any, *, supervised: bool = False) -> list[Any]:
        """The waiters to tell.

        Raises:
            KeyError: the name is not reserved by this owner.
        """
        entry = self.entries.get(name)
        if entry is None or entry.owner != owner:
            raise KeyError(name)
        entry.roster, entry.published, entry.supervised = roster, True, supervised
        waiting = list(self.waiters.get(name, ()))
        for waiter in waiting:
            self.forget_waiter(name, waiter)
        return waiting

    def join(self, name: str, rank: int, size: int, owner: int, member: Any) -> list[Any]:
        """Makes a member known that comes by itself; the waiters to tell: of this rank, or of all once they are there.

        Raises:
            ValueError: the name is that of something else, the rank is taken, or others speak of another size.
        """
        if not 0 <= rank < size:
            raise ValueError(f"'{name}' has {size} members: there is no rank {rank}")
        entry = self.entries.setdefault(name, Entry(NO_HOLDER, size=size))
        self.closed.discard(name)
        if entry.owner != NO_HOLDER:
            raise ValueError(f"a group named '{name}' exists already: whoever made it did not leave it to join")
        if entry.size != size:
            raise ValueError(f"'{name}' has {entry.size} members, as others say, and not {size}")
        if rank in entry.members:
            raise ValueError(f"rank {rank} of '{name}' is there already")
        entry.members[rank] = (owner, member)
        if len(entry.members) == size:
            entry.roster, entry.published = [entry.members[rank][1] for rank in range(size)], True
        told = [
            waiter
            for waiter in self.waiters.get(name, ())
            if entry.published or self.wanted.get((name, waiter), (None,))[0] == rank
        ]
        for waiter in told:
            self.forget_waiter(name, waiter)
        return told

    def replace(self, name: str, owner: int, rank: int, was: int, member: Any) -> list[Any]:
        """A rank that had ended is back, or will not be; the waiters to tell.

        Args:
            was: the endpoint that it had.
            member: its entry of the roster; None where it does not come back.

        Raises:
            KeyError: the name is not published by this owner, or has no such rank.
        """
        entry = self.entries.get(name)
        if entry is None or entry.owner != owner or not entry.published or not 0 <= rank < len(entry.roster):
            raise KeyError(name)
        if member is None:
            entry.lost.add(was)
        else:
            entry.roster[rank] = member
        told = [waiter for waiter in self.waiters.get(name, ()) if self.wanted.get((name, waiter)) == (rank, was)]
        for waiter in told:
            self.forget_waiter(name, waiter)
        return told

    def lookup(self, name: str, waiter: Any, rank: int | None = None, after: int = 0) -> Any:
        """The roster, or None; then the waiter is remembered until the name is published.

        Args:
            rank: who is looked for; of a name that is joined, a roster with that member will do.
            after: the endpoint with which that rank has ended: where it comes back, the one after that is waited for.

        Raises:
            ClosedError: what had the name is closed.
        """
        self.closed.check(name)
        entry = self.entries.get(name)
        roster = None if entry is None else entry.roster_with(rank)
        if roster is None and after:
            raise ClosedError(f"group '{name}' was closed, or has left")
        if entry is not None and roster is not None and after and rank is not None:
            comes_back = entry.supervised and after not in entry.lost
            roster = None if comes_back and roster[rank]["endpoint"] == after else roster
        if roster is None:
            self.waiters.setdefault(name, []).append(waiter)
            if rank is not None:
                self.wanted[name, waiter] = rank, after
        return roster

    def find(self, name: str, rank: int) -> Any:
        """The roster's entry of a rank; None where there is none."""
        entry = self.entries.get(name)
        roster = None if entry is None else entry.roster_with(rank)
        return roster[rank] if roster is not None and 0 <= rank < len(roster) else None

    def comes_back(self, endpoint: int) -> bool:
        """True if the rank that has this endpoint is to come back once it has ended."""
        return any(
            entry.supervised
            and endpoint not in entry.lost
            and any(each["endpoint"] == endpoint for each in entry.roster)
            for entry in self.entries.values()
        )

    def forget_waiter(self, name: str, waiter: Any) -> None:
        waiting = self.waiters.get(name, [])
        if waiter in waiting:
            waiting.remove(waiter)
        if not waiting:
            self.waiters.pop(name, None)
        self.wanted.pop((name, waiter), None)

    def drop_waiter(self, gone: int) -> None:
        """Forgets the lookups of an endpoint; waiters are (endpoint, number of its ask)."""
        for name, waiting in list(self.waiters.items()):
            for waiter in [waiter for waiter in waiting if waiter[0] == gone]:
                self.forget_waiter(name, waiter)

    def release(self, name: str, owner: int) -> bool:
        """False if the name was not this owner's."""
        entry = self.entries.get(name)
        if entry is None or entry.owner != owner:
            return False
        self._close(name)
        return True

    def drop_owner(self, owner: int) -> list[str]:
        """Releases everything that an endpoint owned; the names."""
        names = [name for name, entry in self.entries.items() if entry.owner == owner or self._leave(entry, owner)]
        for name in names:
            self._close(name)
        return names

    def orphaned_waiters(self) -> list[tuple[str, Any]]:
        """Takes out those who wait for a rank to come back whose group was closed."""
        found = [
            (name, waiter)
            for name, waiting in self.waiters.items()
            for waiter in waiting
            if self.wanted.get((name, waiter), (0, 0))[1] and name not in self.entries
        ]
        for name, waiter in found:
            self.forget_waiter(name, waiter)
        return found

    def _close(self, name: str) -> None:
        entry = self.entries.pop(name)
        if entry.published and entry.owner != NO_HOLDER:
            self.closed.add(name)

    def _leave(self, entry: Entry, owner: int) -> bool:
        """Takes a member out; whether it was the last one."""
        ranks = [rank for rank, (of, _) in entry.members.items() if of == owner]
        for rank in ranks:
            del entry.members[rank]
            entry.roster, entry.published = None, False
        return bool(ranks) and not entry.members

    def owners(self) -> set[int]:
        """All that own a name, or are members of one that has no other owner."""
        members = {of for entry in self.entries.values() for of, _ in entry.members.values()}
        return members | {entry.owner for entry in self.entries.values() if entry.owner != NO_HOLDER}

    def names(self) -> list[str]:
        return sorted(name for name, entry in self.entries.items() if entry.published)
