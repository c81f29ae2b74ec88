"""``Link``: interface of a transport of large CPU buffers between two workers (send, receive, control, discard)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_async._transports.memory import Memory
from rlinf_async.work import Work

Post = Callable[[Any], None]
"""Hands facts (plain data, small) to the opposite number, whose ``on_control`` gets them: in order, once each."""


class Link(ABC):
    """A transport between this process and ONE peer, for both directions; the peer has the opposite number of it.

    The two mailboxes agree on a transfer before either link hears of it: the sender has announced its number and its
    sizes.  Numbers are per direction: ``send(7)`` here and ``send(7)`` there have nothing to do with each other.  The
    transfers of one direction are asked for in the same order on both sides, but one side may be far ahead.

    A link is constructed as ``Kind(post, first, address)``: ``first`` is true on exactly one of the two sides, and
    ``address`` is this node's own address.  Nothing is set up before the first transfer.  All methods return at once
    and may be called from any thread; the works settle on any thread::

        sender                                          receiver
        send(7, [view]) ── post ──► on_control          receive(7, [size]) ── post ──► on_control
        done: ``view`` may be mutated                   done: the buffers
    """

    @abstractmethod
    def send(self, transfer: int, buffers: Sequence[memoryview]) -> Work[None]:
        """Sends the buffers (flat, contiguous, of bytes) once the peer receives; done when they may be mutated."""

    @abstractmethod
    def receive(self, transfer: int, sizes: Sequence[int]) -> Work[list[memoryview]]:
        """Receives what the peer sends under this number: writable memory of ``sizes`` bytes, the receiver's own."""

    def receive_in(self, transfer: int, sizes: Sequence[int], memory: Memory) -> Work[list[memoryview]]:
        """The same, in memory that is taken from there; a link that always takes its own does so here too."""
        return self.receive(transfer, sizes)

    @abstractmethod
    def on_control(self, facts: Any) -> None:
        """What the opposite number has posted."""

    @abstractmethod
    def discard(self, error: Exception, transfer: int | None = None) -> None:
        """After an error, a deadline or a death: whatever is open fails with ``error``; the next use starts anew.

        The opposite number is told, so that what is open there fails too.  Idempotent, and it does not block.

        Args:
            transfer: only this one fails, which is sent here; the others arrive all the same.
        """
