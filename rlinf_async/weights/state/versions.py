"""Rules for versions: valid numbers at a sender, a receiver's judgement, and a ledger of receivers' versions.

Plain state without IO.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final

_LARGEST: Final = (1 << 63) - 1
"""Largest version that fits into 8 bytes, the size in which versions are sent."""


def number_of(version: Any) -> int:
    """Return the number given as ``version=``.

    Raises:
        TypeError: it is not an integer; a bool is refused, too.
        ValueError: it is negative, or does not fit into 8 bytes.
    """
    try:
        if isinstance(version, bool):
            raise TypeError
        number = operator.index(version)
    except TypeError:
        raise TypeError(f"version= takes a whole number; got {version!r}") from None
    if not 0 <= number <= _LARGEST:
        raise ValueError(f"version= is at least 0 and at most {_LARGEST}; got {number}")
    return number


def next_version(last: int, version: int | None = None) -> int:
    """Return the number of the version that follows ``last``: the next number, or the caller's.

    Raises:
        ValueError: it is not greater than ``last``, or does not fit into 8 bytes.
        TypeError: it is not an integer.
    """
    number = number_of(last + 1 if version is None else version)
    if number <= last:
        raise ValueError(f"version {number} is not after version {last}, which was published last")
    return number


class Judgement(Enum):
    """The judgement on weights that have reached a receiver."""

    APPLY = auto()
    DUPLICATE = auto()
    """The model already has these weights: acknowledge, but do not write."""
    STALE = auto()
    """The model has a later version, or another sender's version with that number: do not write."""


class Reception:
    """The versions at a receiver.

    Attributes:
        version: applied version; 0 before the first.
        sender: that version's sender, if known.
        published: latest version known to the receiver.
        is_whole: False after a write that failed midway, until a complete version is applied.
        is_there: False after the destination was replaced, until a complete version is applied to the new one.
    """

    def __init__(self) -> None:
        self.version = 0
        self.sender: Any = None
        self.published = 0
        self.is_whole = True
        self.is_there = True

    @property
    def staleness(self) -> int:
        """Number of versions that are published but not applied."""
        return self.published - self.version

    def heard(self, version: int) -> None:
        self.published = max(self.published, version)

    def judge(self, version: int, sender: Any = None) -> Judgement:
        """Judge a complete version by its number, however it arrived.

        later than the applied version                             APPLY
        the applied version, if torn or lost with the destination   APPLY
        the applied version                                        DUPLICATE
        the applied number from another sender, if both are known  STALE
        earlier than the applied version                           STALE
        """
        self.heard(version)
        if version > self.version:
            return Judgement.APPLY
        if version < self.version or not (sender is None or self.sender in (None, sender)):
            return Judgement.STALE
        return Judgement.DUPLICATE if self.is_whole and self.is_there else Judgement.APPLY

    def applied(self, version: int) -> None:
        """Record a complete version.

        Raises:
            ValueError: the version is lower than the applied one.
        """
        self.overwritten(version)
        self.is_whole = self.is_there = True

    def overwritten(self, version: int, sender: Any = None) -> None:
        """Record a version that may lack tensors, so that a torn destination stays torn.

        Raises:
            ValueError: as for ``applied``.
        """
        if version < self.version:
            raise ValueError(f"version {version} cannot follow version {self.version}")
        self.version, self.sender = version, sender
        self.heard(version)

    def moved(self) -> None:
        """Record that the destination was replaced by one without weights."""
        self.is_there = False

    def torn(self) -> None:
        """Record a write that failed midway."""
        self.is_whole = False


class Versioned:
    """The base class of receivers whose versions a ``Reception`` tracks."""

    _reception: Reception

    @property
    def version(self) -> int:
        """The version in the model, which never decreases; 0 before the first."""
        return self._reception.version

    @property
    def published(self) -> int:
        """The latest version known to this receiver."""
        return self._reception.published

    @property
    def staleness(self) -> int:
        """Number of versions by which the model lags behind."""
        return self._reception.staleness


@dataclass
class LedgerEntry:
    """One receiver in the ledger.

    Attributes:
        acked: latest version that the receiver has acknowledged; 0 if none.
        trouble: why the receiver may lack later versions; its next version must be complete.
    """

    acked: int = 0
    trouble: Any = None


@dataclass
class _VersionUnderWay:
    waiting: set[Any]
    answers: dict[Any, Any]


class VersionLedger:
    """Sent versions and their acknowledgements.

    Acknowledgements are matched by version, never by order, so late, duplicate or unrelated ones do not affect the
    awaited version.
    """

    def __init__(self) -> None:
        self.targets: dict[Any, LedgerEntry] = {}
        self.version = 0
        self._pending: dict[int, _VersionUnderWay] = {}

    def add(self, target: Any) -> None:
        """Add a receiver without a version."""
        self.targets[target] = LedgerEntry()

    def remove(self, target: Any, answer: Any) -> list[int]:
        """Remove a receiver; return the versions that are complete without it."""
        complete = self.gone(target, answer, "")
        del self.targets[target]
        return complete

    def check(self, version: int | None) -> int:
        """Return the next version's number; errors as for ``next_version``."""
        return next_version(self.version, version)

    @property
    def pending(self) -> dict[int, list[Any]]:
        """Maps each pending version to the receivers that have not answered."""
        return {version: list(sending.waiting) for version, sending in self._pending.items()}

    def begin(self, version: int, targets: Iterable[Any], answers: Mapping[Any, Any] = MappingProxyType({})) -> bool:
        """Record the publication of a version to these receivers; return True if it is already complete.

        Args:
            answers: answers on behalf of receivers that have already ended.
        """
        # Check everything before the first change, because a refused version must not use up its number.
        waiting = set(targets) - answers.keys()
        if unknown := waiting - self.targets.keys():
            raise KeyError(f"nobody is called {unknown.pop()!r}")
        self.version = self.check(version)
        self._pending[version] = _VersionUnderWay(waiting, dict(answers))
        return not waiting

    def excess(self, behind: int) -> list[int]:
        """Return the oldest pending versions beyond the latest one and ``behind`` others."""
        return list(self._pending)[: -behind - 1]

    def answer(
        self, target: Any, version: int, answer: Any, trouble: Any = None, *, compared: Collection[int] = ()
    ) -> list[int]:
        """Record a target's answer, which also answers earlier versions that the target has skipped.

        Args:
            trouble: why the target lacks the version.
            compared: versions that the target has applied and that are being compared.

        Returns:
            The versions that are now complete and must be passed to ``finish``.
        """
        earlier = [each for each in self._pending if each < version and each not in compared]
        return [each for each in (version, *earlier) if self.settle(target, each, answer, trouble)]

    def settle(self, target: Any, version: int, answer: Any, trouble: Any = None) -> bool:
        """Record a target's outcome for that version alone; return True if the version is now complete."""
        known = self.targets.get(target)
        if known is None:
            return False
        if trouble is None:
            if version >= known.acked:
                known.acked = version
                known.trouble = None
        elif version > known.acked:
            known.trouble = trouble
        sending = self._pending.get(version)
        if sending is None or target not in sending.waiting:
            return False
        sending.waiting.discard(target)
        sending.answers[target] = answer
        return not sending.waiting

    def gone(self, target: Any, answer: Any, trouble: Any) -> list[int]:
        """Record that a receiver will not answer any more; return the versions that are now complete."""
        return [version for version in list(self._pending) if self.settle(target, version, answer, trouble)]

    def finish(self, version: int) -> Mapping[Any, Any] | None:
        """Return all answers to a version, and forget it; None if it was already forgotten."""
        sending = self._pending.pop(version, None)
        return None if sending is None else sending.answers
