"""Interfaces ``Pair``, one side of a two-rank process group (Gloo, NCCL), and ``Owner``, the link that it calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from rlinf_async._transports.tcp_connections import Address
from rlinf_async._transports.transfer import Receiving, Sending


class Pair(ABC):
    """One half of a process group of two, from its making to its first error, which is its end.

    No method blocks; the pair has threads of its own, in which it calls its owner.
    """

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """The two halves have found together."""

    @abstractmethod
    def on_set(self, key: str, value: bytes) -> None:
        """What the opposite number's store has set."""

    @abstractmethod
    def admit(self, address: Address) -> None:
        """The opposite number has connected from there."""

    @abstractmethod
    def receive(self, receiving: Receiving[Any]) -> None:
        """Makes room for it, says that it is ready, and then what has arrived; in the order of these calls."""

    @abstractmethod
    def send(self, sending: Sending, tag: int, start: int) -> None:
        """The opposite number is ready for its chunks from ``start`` on."""

    @abstractmethod
    def expect(self, number: int) -> None:
        """The opposite number has begun to send it."""

    @abstractmethod
    def forget(self, number: int) -> None:
        """The opposite number has received it."""

    @abstractmethod
    def close(self, error: Exception) -> None:
        """Ends it.  Idempotent; what it still uses for a moment it lets go of by itself."""


class Owner(Protocol):
    """The link of a pair, which the pair calls in threads of its own."""

    def set_key(self, pair: Pair, key: str, value: bytes) -> None:
        """The opposite number's ``on_set`` is to be called with this."""

    def connected(self, pair: Pair, address: Address) -> None:
        """The opposite number's ``admit`` is to be called with this: our end of the connection that we made."""

    def begins(self, pair: Pair, receiving: Receiving[Any]) -> int | None:
        """The first chunk that has not arrived, from which on the peer may be sending now; None: not wanted.

        Raises:
            MemoryError: there is no room for it; ``refuses`` is to be called.
        """

    def ready(self, pair: Pair, receiving: Receiving[Any], tag: int, start: int) -> None:
        """The opposite number's ``send`` is to be called."""

    def sends(self, pair: Pair, sending: Sending) -> None:
        """The opposite number's ``expect`` is to be called."""

    def arrived(self, pair: Pair, receiving: Receiving[Any]) -> None:
        """One more chunk is complete."""

    def refuses(self, pair: Pair, receiving: Receiving[Any], error: Exception) -> None:
        """There is no room for it; the pair goes on."""

    def broke(self, pair: Pair, error: Exception) -> None:
        """The pair has ended by itself."""
