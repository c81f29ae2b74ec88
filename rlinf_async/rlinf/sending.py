"""The identity of one transmission of a version, which distinguishes late and duplicate weights from weights sent
again."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from rlinf_async.errors import StaleVersion
from rlinf_async.weights.state.versions import number_of


class Sending(NamedTuple):
    """One transmission of a version; a version may be sent several times, each time with different weights.

    Attributes:
        version: version of the weights.
        number: index among its sender's transmissions since the sender's initialisation.
        sender: random number drawn at the sender's initialisation, because several senders use the same numbers.
    """

    version: int
    number: int
    sender: int

    @classmethod
    def none_yet(cls) -> Sending:
        """Return the state of a new sender, which precedes its first transmission."""
        return cls(version=-1, number=-1, sender=secrets.randbits(63))

    @classmethod
    def beginning(cls, checksums: Mapping[str, int | None]) -> Sending:
        """Return the identity of initial weights that are equal on both sides; it precedes every transmission."""
        digest = hashlib.blake2b(repr(sorted(checksums.items())).encode(), digest_size=16).digest()
        return cls(version=-1, number=-1, sender=int.from_bytes(digest))

    def following(self, version: Any) -> Sending:
        """Return the next transmission of this sender.

        Raises:
            StaleVersion: (a ValueError) the version is lower than this transmission's.
            TypeError, ValueError: as for ``number_of``.
        """
        number = number_of(version)
        if number < self.version:
            raise StaleVersion.of(number, self.version, "which was sent last")
        return Sending(number, self.number + 1, self.sender)

    def is_after(self, other: Sending) -> bool:
        """Return True for a later transmission of the same sender, or for a higher version of another sender."""
        if self.sender == other.sender:
            return self.number > other.number
        return self.version > other.version

    def check_after(self, latest: Sending, what: str) -> None:
        """Check that this transmission is after another.

        Args:
            what: relative clause about the latest transmission: ``"which is here"``.

        Raises:
            StaleVersion: this transmission is late or a duplicate, or its sender was initialised again.
        """
        if not self.is_after(latest):
            anew = "" if self.sender == latest.sender else ", of another sender (init_receiver() begins anew here too)"
            raise StaleVersion.of(self.version, latest.version, what + anew)


class SendingOrder:
    """The order in which transmissions arrive at a receiver of buckets.

    Attributes:
        latest: the last transmission that arrived; None before the first.
    """

    def __init__(self) -> None:
        self.latest: Sending | None = None
        self._replaced: set[int] = set()
        """Senders that another sender has replaced, so that their further messages are late."""

    def is_late(self, sending: Sending | None) -> bool:
        """Return True for a repeated transmission or a replaced sender's; a message without one is never late."""
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
