"""Rules of versions: the number that a sender may give, a receiver's judgement, and the ledger of who has which.

Plain state.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final

_LARGEST: Final = (1 << 63) - 1
"""Versions travel as 8 bytes."""


def number_of(version: Any) -> int:
    """Return the number that ``version=`` gives.

    Raises:
        TypeError: it is no whole number; a bool is none.
        ValueError: it is negative, or too large to travel.
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
    """Return the number of the version that follows ``last``: the next one, or the one that the caller gives.

    Raises:
        ValueError: it is not after the last one, or too large to travel.
        TypeError: it is no whole number.
    """
    number = number_of(last + 1 if version is None else version)
    if number <= last:
        raise ValueError(f"version {number} is not after version {last}, which was published last")
    return number


class Judgement(Enum):
    """Judgement of weights that have come to a receiver."""

    APPLY = auto()
    DUPLICATE = auto()
    """They are here: acknowledged, and not written."""
    STALE = auto()
    """Later ones are here, or another sender's with that number: not written."""


class Reception:
    """A receiver's version.

    Attributes:
        version: that is applied; 0 before the first.
        sender: of it, where that is told.
        published: the latest that the receiver has heard of.
        is_whole: False after a write that has failed half way, until a full version is applied.
        is_there: False once the weights are to go somewhere else, until a full version is applied there.
    """

    def __init__(self) -> None:
        self.version = 0
        self.sender: Any = None
        self.published = 0
        self.is_whole = True
        self.is_there = True

    @property
    def staleness(self) -> int:
        """Versions that are published and not applied."""
        return self.published - self.version

    def heard(self, version: int) -> None:
        """There is such a version."""
        self.published = max(self.published, version)

    def judge(self, version: int, sender: Any = None) -> Judgement:
        """Judges whole weights by their number, whatever has brought them.

        a later version than what is here                          APPLY
        the same one, which is torn, or not where it is to be      APPLY
        the same one                                               DUPLICATE
        the same number of another sender, where both are told     STALE
        an earlier version                                         STALE
        """
        self.heard(version)
        if version > self.version:
            return Judgement.APPLY
        if version < self.version or not (sender is None or self.sender in (None, sender)):
            return Judgement.STALE
        return Judgement.DUPLICATE if self.is_whole and self.is_there else Judgement.APPLY

    def applied(self, version: int) -> None:
        """
        Raises:
            ValueError: versions never go back.
        """
        self.overwritten(version)
        self.is_whole = self.is_there = True

    def overwritten(self, version: int, sender: Any = None) -> None:
        """It is applied, as far as it has come: what was missing may be missing yet.

        Raises:
            ValueError: as ``applied``.
        """
        if version < self.version:
            raise ValueError(f"version {version} cannot follow version {self.version}")
        self.version, self.sender = version, sender
        self.heard(version)

    def moved(self) -> None:
        """The weights are to go to something that has none of them yet."""
        self.is_there = False

    def torn(self) -> None:
        """A write has failed half way."""
        self.is_whole = False


class Versioned:
    """Base of receivers whose versions a ``Reception`` has."""

    _reception: Reception

    @property
    def version(self) -> int:
        """The version in the model; 0 before the first. It never goes back."""
        return self._reception.version

    @property
    def published(self) -> int:
        """The latest version that this receiver has heard of."""
        return self._reception.published

    @property
    def staleness(self) -> int:
        """Versions that the model is behind."""
        return self._reception.staleness


@dataclass
class LedgerEntry:
    """One receiver, as its sender knows it.

    Attributes:
        acked: the latest version that it has acknowledged; 0: none.
        trouble: why it may lack what was published since; it gets a full version next.
    """

    acked: int = 0
    trouble: Any = None


@dataclass
class _Pending:
    waiting: set[Any]
    answers: dict[Any, Any]


class VersionLedger:
    """Who was sent what and has acknowledged what.

    Acknowledgements are matched by their version, never by their order: one that is late, doubled or about something
    else changes nothing for the version that is waited for.
    """

    def __init__(self) -> None:
        self.targets: dict[Any, LedgerEntry] = {}
        self.version = 0
        self._sendings: dict[int, _Pending] = {}

    def add(self, target: Any) -> None:
        """A receiver, which knows nothing yet."""
        self.targets[target] = LedgerEntry()

    def remove(self, target: Any, answer: Any) -> list[int]:
        """It is no receiver any more.  Returns the versions that are complete without it."""
        complete = self.gone(target, answer, "")
        del self.targets[target]
        return complete

    def check(self, version: int | None) -> int:
        """Return the number of the next version; the errors are those of ``next_version``."""
        return next_version(self.version, version)

    @property
    def pending(self) -> dict[int, list[Any]]:
        """Of each version that is under way, those who have not answered."""
        return {version: list(sending.waiting) for version, sending in self._sendings.items()}

    def begin(self, version: int, targets: Iterable[Any], answers: Mapping[Any, Any] = MappingProxyType({})) -> bool:
        """A version is published to these.  Returns whether it is complete, because there are none.

        Args:
            answers: of those that are gone already, and are waited for no more.
        """
        waiting = set(targets) - answers.keys()
        if unknown := waiting - self.targets.keys():
            raise KeyError(f"nobody is called {unknown.pop()!r}")
        self.version = self.check(version)
        self._sendings[version] = _Pending(waiting, dict(answers))
        return not waiting

    def excess(self, behind: int) -> list[int]:
        """Return the oldest versions under way, if there are more than the latest and ``behind`` others."""
        return list(self._sendings)[: -behind - 1]

    def answer(
        self, target: Any, version: int, answer: Any, trouble: Any = None, *, compared: Collection[int] = ()
    ) -> list[int]:
        """Note a target's answer, also to the earlier versions, which it has skipped.

        Args:
            trouble: why it does not have the version.
            compared: versions that it has applied itself and that are being compared.

        Returns:
            The versions that are complete now, so that ``finish`` is due.
        """
        earlier = [each for each in self._sendings if each < version and each not in compared]
        return [each for each in (version, *earlier) if self.settle(target, each, answer, trouble)]

    def settle(self, target: Any, version: int, answer: Any, trouble: Any = None) -> bool:
        """Note what has become of that version alone at a target; True if it is complete now."""
        known = self.targets.get(target)
        if known is None:
            return False
        if trouble is None:
            if version >= known.acked:
                known.acked = version
                known.trouble = None
        elif version > known.acked:
            known.trouble = trouble
        sending = self._sendings.get(version)
        if sending is None or target not in sending.waiting:
            return False
        sending.waiting.discard(target)
        sending.answers[target] = answer
        return not sending.waiting

    def gone(self, target: Any, answer: Any, trouble: Any) -> list[int]:
        """Nothing more will come from a target; returns the versions that are complete now."""
        return [version for version in list(self._sendings) if self.settle(target, version, answer, trouble)]

    def finish(self, version: int) -> Mapping[Any, Any] | None:
        """All answers to a version, which is then forgotten; None of one that is forgotten already."""
        sending = self._sendings.pop(version, None)
        return None if sending is None else sending.answers

    def forget(self, version: int) -> Collection[Any]:
        """Nobody waits for that version any more; returns those who have not answered."""
        sending = self._sendings.pop(version, None)
        return sending.waiting if sending is not None else ()
