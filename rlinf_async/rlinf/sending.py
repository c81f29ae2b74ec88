"""Identity of one sending of a version: tells late and doubled weights from those that are sent once more."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from rlinf_async.errors import StaleVersion
from rlinf_async.weights.state.versions import number_of


class Sending(NamedTuple):
    """A version may be sent more than once, with other weights each time; each time is a sending of its own.

    Attributes:
        version: of the weights.
        number: of the sendings that its sender has begun since it was initialised, counted from 0.
        sender: drawn by the sender when it is initialised: another one counts in the same numbers.
    """

    version: int
    number: int
    sender: int

    @classmethod
    def none_yet(cls) -> Sending:
        """Where a sender begins: its first sending follows this."""
        return cls(version=-1, number=-1, sender=secrets.randbits(63))

    @classmethod
    def beginning(cls, checksums: Mapping[str, int | None]) -> Sending:
        """Stands for weights that both sides have when they are initialised, by name; before every sending."""
        digest = hashlib.blake2b(repr(sorted(checksums.items())).encode(), digest_size=16).digest()
        return cls(version=-1, number=-1, sender=int.from_bytes(digest))

    def following(self, version: Any) -> Sending:
        """Return the next sending of this sender.

        Raises:
            StaleVersion: (a ValueError) the version is lower than this one's.
            TypeError, ValueError: as ``number_of``.
        """
        number = number_of(version)
        if number < self.version:
            raise StaleVersion.of(number, self.version, "which was sent last")
        return Sending(number, self.number + 1, self.sender)

    def is_after(self, other: Sending) -> bool:
        """True for the later one of one sender's two, whose version is never lower; of two senders', for the higher
        version."""
        if self.sender == other.sender:
            return self.number > other.number
        return self.version > other.version

    def check_after(self, latest: Sending, what: str) -> None:
        """Check the order of two sendings.

        Args:
            what: the latest one in words: ``"which is here"``.

        Raises:
            StaleVersion: this one is late or doubled, or of a sender that has begun anew.
        """
        if not self.is_after(latest):
            anew = "" if self.sender == latest.sender else ", of another sender (init_receiver() begins anew here too)"
            raise StaleVersion.of(self.version, latest.version, what + anew)


class Arrivals:
    """Order in which sendings arrive at a receiver of buckets.

    Attributes:
        latest: the one that came last; None before the first.
    """

    def __init__(self) -> None:
        self.latest: Sending | None = None
        self._replaced: set[int] = set()
        """Senders after which another one has begun: their further messages are late."""

    def is_late(self, sending: Sending | None) -> bool:
        """True if the sending came before, or another sender has begun since; a message without one never is."""
        if sending is None or self.latest is None:
            return False
        if sending.sender == self.latest.sender:
            return sending.number <= self.latest.number
        return sending.sender in self._replaced

    def add(self, sending: Sending | None) -> None:
        if sending is not None:
            if self.latest is not None and self.latest.sender != sending.sender:
                self._replaced.add(self.latest.sender)
            self.latest = sending
