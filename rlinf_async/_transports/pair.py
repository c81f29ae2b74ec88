"""Interfaces ``Pair``, one side of a two-rank process group (Gloo, NCCL), and ``PairOwner``, the link that it calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from rlinf_async._transports.tcp_connections import Address
from rlinf_async._transports.transfer import ReceiveTransfer, SendTransfer


class Pair(ABC):
    """One half of a process group of two, from its creation to its first error, which ends it.

    No method blocks. The pair has threads of its own, in which it calls its owner.
    """

    @property
    @abstractmethod
    def is_connected(self) -> bool: ...

    @abstractmethod
    def on_set(self, key: str, value: bytes) -> None: ...

    @abstractmethod
    def admit(self, address: Address) -> None:
        """Note the address from which the peer has connected."""

    @abstractmethod
    def receive(self, receiving: ReceiveTransfer[Any]) -> None:
        """Prepare a receive, announce that it is ready, and report its chunks; in the order of these calls."""

    @abstractmethod
    def send(self, sending: SendTransfer, tag: int, start: int) -> None:
        """Send chunks from ``start`` on, for which the peer is ready."""

    @abstractmethod
    def expect(self, number: int) -> None:
        """Note that the peer has begun to send a transfer."""

    @abstractmethod
    def forget(self, number: int) -> None: ...

    @abstractmethod
    def close(self, error: Exception) -> None:
        """End the pair. Idempotent; resources still in use are released shortly afterwards."""


class PairOwner(Protocol):
    """Link of a pair, which the pair calls from its own threads."""

    def set_key(self, pair: Pair, key: str, value: bytes) -> None:
        """Have the peer call ``on_set`` with this key."""

    def connected(self, pair: Pair, address: Address) -> None:
        """Have the peer call ``admit`` with our end of the connection that this side made."""

    def begins(self, pair: Pair, receiving: ReceiveTransfer[Any]) -> int | None:
        """Return the first missing chunk, from which the peer may now send; None: the transfer is not wanted.

        MemoryError means that there is no room for it; the pair must call ``refuses``.
        """

    def ready(self, pair: Pair, receiving: ReceiveTransfer[Any], tag: int, start: int) -> None:
        """Have the peer call ``send``."""

    def sends(self, pair: Pair, sending: SendTransfer) -> None:
        """Have the peer call ``expect``."""

    def arrived(self, pair: Pair, receiving: ReceiveTransfer[Any]) -> None: ...

    def refuses(self, pair: Pair, receiving: ReceiveTransfer[Any], error: Exception) -> None:
        """Fail a transfer without room; the pair goes on."""

    def broke(self, pair: Pair, error: Exception) -> None:
        """Note that the pair has ended by itself."""
