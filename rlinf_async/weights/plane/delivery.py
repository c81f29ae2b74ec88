"""Delivery of a version as a message: it carries the weights whole, and its end is the receiver's answer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Parcel(NamedTuple):
    """A version of the weights as a message carries it.

    Attributes:
        timeout: seconds that the receivers have; None: as long as it takes.
    """

    model_id: str
    version: int
    weights: Any
    timeout: float | None


class Delivery(Protocol):
    """One parcel's way to a receiver, or to several by one call; or into memory of the sender's own, to nobody."""

    @property
    def names(self) -> Sequence[Hashable]:
        """Of the receivers."""

    @property
    def has_begun(self) -> bool:
        """Whether a receiver may have heard of the version, or may hear of it yet, so that its number is spent."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights as they travelled; 0: not known."""

    async def stage(self, parcel: Parcel) -> None:
        """Sends it; finished when the weights may change.

        Raises:
            Exception: it cannot be sent at all; nobody has got anything.
        """

    async def end(self) -> Mapping[Hashable, Exception | None]:
        """Waits for the answers: of each receiver its error, or None; if that is cancelled, it may be called again.

        Raises:
            WrongAcknowledgement: a receiver has said something else than what was expected; it may be called again.
        """

    def give_up(self) -> None:
        """Ends what nobody waits for any more."""
