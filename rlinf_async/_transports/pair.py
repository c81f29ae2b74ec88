"""The interfaces ``Pair``, one side of a two-rank process group, and ``PairOwner``, the link that owns it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from rlinf_async._transports.tcp_connections import Address
from rlinf_async._transports.transfer import ReceiveTransfer, SendTransfer


class Pair(ABC):
    """One half of a process group of two, from its creation to its first error, which closes it.

    No method blocks. The pair calls its owner on its own threads.
    """

    @property
    @abstractmethod
    def is_connected(self) -> bool: ...

    @abstractmethod
    def on_set(self, key: str, value: bytes) -> None: ...

    @abstractmethod
    def admit(self, address: Address) -> None:
        """Record the address from which the peer has connected."""

    @abstractmethod
    def receive(self, receiving: ReceiveTransfer[Any]) -> None:
        """Prepare a receive, announce it as ready, and report its chunks. Receives keep the order of the calls."""

    @abstractmethod
    def send(self, sending: SendTransfer, tag: int, start: int) -> None:
        """Send the chunks starting at ``start``, which the peer is ready to receive."""

    @abstractmethod
    def expect(self, number: int) -> None:
        """Record that the peer has begun to send a transfer."""

    @abstractmethod
    def forget(self, number: int) -> None: ...

    @abstractmethod
    def close(self, error: Exception) -> None:
        """Close the pair. Idempotent; resources still in use are released shortly afterwards."""


class PairOwner(Protocol):
    """The link that owns a pair; called from the pair's own threads."""

    def set_key(self, pair: Pair, key: str, value: bytes) -> None:
        """Make the peer call ``on_set`` with this key."""

    def connected(self, pair: Pair, address: Address) -> None:
        """Make the peer call ``admit`` with the local address of the connection that this side opened."""

    def begins(self, pair: Pair, receiving: ReceiveTransfer[Any]) -> int | None:
        """Return the first missing chunk, from which the peer may now send; None if the transfer was abandoned.

        On MemoryError the pair must call ``refuses``.
        """

    def ready(self, pair: Pair, receiving: ReceiveTransfer[Any], tag: int, start: int) -> None:
        """Make the peer call ``send``."""

    def sends(self, pair: Pair, sending: SendTransfer) -> None:
        """Make the peer call ``expect``."""

    def arrived(self, pair: Pair, receiving: ReceiveTransfer[Any]) -> None: ...

    def refuses(self, pair: Pair, receiving: ReceiveTransfer[Any], error: Exception) -> None:
        """Fail a transfer for which there is no memory; the pair continues."""

    def broke(self, pair: Pair, error: Exception) -> None:
        """Handle the failure of the pair."""
