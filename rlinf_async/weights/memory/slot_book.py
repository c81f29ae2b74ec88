"""Versions in the slots of a sender, and the slot that the next one may take: plain state."""

from __future__ import annotations

from collections.abc import Collection


class SlotBook:
    """What the writer knows of its slots: which version each holds, and in which version each leaf of it changed.

    A version that names only some leaves takes the others from the latest one, as far as the slot has not got them
    already.
    """

    def __init__(self, slots: int, leaves: int) -> None:
        if slots < 2:
            raise ValueError(f"a store of {slots} slots cannot be read while it is written: it takes 2 or more")
        self._everything = frozenset(range(leaves))
        self._versions = [0] * slots
        self._changed = [0] * leaves
        """In which version each leaf has changed last."""
        self._holds: list[list[int] | None] = [None] * slots
        """Of each slot and leaf, the version of it that is there; None where nothing is known of the slot."""
        self.latest: int | None = None
        """The slot with the latest version."""

    def candidates(self) -> list[int]:
        """Slots that may be written to, that with the oldest version first; whether they are read is for others to say.

        The latest version is never among them: it stays whole until there is a newer one.
        """
        slots = [slot for slot in range(len(self._versions)) if slot != self.latest]
        return sorted(slots, key=lambda slot: self._versions[slot])

    def missing(self, slot: int, given: Collection[int] | None) -> list[int]:
        """Leaves that the slot has to get from the latest version, if the given ones are written to it.

        Args:
            given: indices of leaves; None: all.

        Raises:
            ValueError: there is no version to take them from.
        """
        rest = [] if given is None else sorted(self._everything - set(given))
        if not rest:
            return []
        if self.latest is None:
            raise ValueError("the first version has to have every leaf: there is nothing to take the others from")
        holds = self._holds[slot]
        return rest if holds is None else [leaf for leaf in rest if holds[leaf] != self._changed[leaf]]

    def begin(self, slot: int) -> None:
        """Writing begins: what is in the slot is not known until it has ended."""
        if slot == self.latest:
            raise ValueError(f"slot {slot} holds the latest version and cannot be written to")
        self._holds[slot] = None

    def finish(self, slot: int, version: int, given: Collection[int] | None) -> None:
        """The slot holds a new version, with the given leaves new and the others those of the version before."""
        for leaf in self._everything if given is None else given:
            self._changed[leaf] = version
        self._holds[slot] = self._changed.copy()
        self._versions[slot] = version
        self.latest = slot

    def withdraw(self, before: int | None) -> None:
        """The latest version never was one: that before it is the latest again, where its slot is known."""
        slot, self.latest = self.latest, before
        if slot is not None:
            self.replace(slot)

    def replace(self, slot: int) -> None:
        """The slot has got new memory, in which nothing is."""
        self.begin(slot)
        self._versions[slot] = 0
