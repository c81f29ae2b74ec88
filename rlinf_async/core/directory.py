"""The names of a run: which group is called what, and who waits to hear of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Entry:
    """One name.  It is reserved at launch and published once its workers exist."""

    owner: int
    roster: Any = None
    published: bool = False


@dataclass
class Directory:
    """Names and waiters; every method says what to do next.

    A lookup of a name that does not exist yet waits for it; a name is free again as soon as it is released or its
    owner is gone.

    Example:
        directory.reserve("rollout", owner=7)          # True: it was free
        directory.lookup("rollout", "a waiter")        # None: not yet
        directory.publish("rollout", 7, roster)        # ["a waiter"]: tell them
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    waiters: dict[str, list[Any]] = field(default_factory=dict)

    def reserve(self, name: str, owner: int) -> bool:
        if name in self.entries:
            return False
        self.entries[name] = Entry(owner)
        return True

    def publish(self, name: str, owner: int, roster: Any) -> list[Any]:
        """The waiters to tell.

        Raises:
            KeyError: the name is not reserved by this owner.
        """
        entry = self.entries.get(name)
        if entry is None or entry.owner != owner:
            raise KeyError(name)
        entry.roster, entry.published = roster, True
        return self.waiters.pop(name, [])

    def lookup(self, name: str, waiter: Any) -> Any:
        """The roster, or None; then the waiter is remembered until the name is published."""
        entry = self.entries.get(name)
        if entry is not None and entry.published:
            return entry.roster
        self.waiters.setdefault(name, []).append(waiter)
        return None

    def forget_waiter(self, name: str, waiter: Any) -> None:
        waiting = self.waiters.get(name, [])
        if waiter in waiting:
            waiting.remove(waiter)
        if not waiting:
            self.waiters.pop(name, None)

    def release(self, name: str, owner: int) -> bool:
        """False if the name was not this owner's."""
        entry = self.entries.get(name)
        if entry is None or entry.owner != owner:
            return False
        del self.entries[name]
        return True

    def drop_owner(self, owner: int) -> list[str]:
        """Releases everything that an endpoint owned; the names."""
        names = [name for name, entry in self.entries.items() if entry.owner == owner]
        for name in names:
            del self.entries[name]
        return names

    def names(self) -> list[str]:
        return sorted(name for name, entry in self.entries.items() if entry.published)
