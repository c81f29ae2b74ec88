"""Identity of one sending of a version, which distinguishes late and duplicate weights from weights sent again."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from rlinf_async.errors import StaleVersion
from rlinf_async.weights.state.versions import number_of


class Sending(NamedTuple):
    """One sending of a version; a version may be sent several times, with other weights each time.

    Attributes:
        version: version of the weights.
        number: index among the sendings of its sender since its initialisation.
        sender: random number drawn at the sender's initialisation, since several senders use the same numbers.
    """

    version: int
    number: int
    sender: int

    @classmethod
    def none_yet(cls) -> Sending:
        """Return the state of a new sender, which precedes its first sending."""
        return cls(version=-1, number=-1, sender=secrets.randbits(63))

    @classmethod
    def beginning(cls, checksums: Mapping[str, int | None]) -> Sending:
        """Return the identity of equal initial weights of both sides; it precedes every sending."""
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
        """Return True for the later sending of the same sender, or for the higher version of another sender."""
        if self.sender == other.sender:
            return self.number > other.number
        return self.version > other.version

    def check_after(self, latest: Sending, what: str) -> None:
        """Check the order of two sendings.

        Args:
            what: relative clause about the latest sending: ``"which is here"``.

        Raises:
            StaleVersion: this sending is late or a duplicate, or its sender was initialised again.
        """
        if not self.is_after(latest):
            anew = "" if self.sender == latest.sender else ", of another sender (init_receiver() begins anew here too)"
            raise StaleVersion.of(self.version, latest.version, what + anew)


class SendingOrder:
    """Order in which sendings arrive at a receiver of buckets.

    Attributes:
        latest: the sending that arrived last; None before the first.
    """

    def __init__(self) -> None:
        self.latest: Sending | None = None
        self._replaced: set[int] = set()
        """Senders that another sender has replaced: their further messages are late."""

    def is_late(self, sending: Sending | None) -> bool:
        """Return True for a repeated sending or a replaced sender's; a message without a sending is never late."""
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
