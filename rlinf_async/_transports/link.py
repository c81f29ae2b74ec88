"""``Link``: the interface of a transport between two workers for large CPU buffers (send, receive, discard)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_async._transports.memory import Memory
from rlinf_async.work import Work

Post = Callable[[Any], None]
"""Function that sends small plain data to the ``on_control`` of the peer's link, in order, exactly once."""


class Link(ABC):
    """A transport between this process and ONE peer, for both directions; the peer has a link of the same kind.

    The two mailboxes agree on a transfer before either link is called: the sender has announced its number and sizes.
    Numbers are separate for each direction: ``send(7)`` on one side is unrelated to ``send(7)`` on the other. Both
    sides request the transfers of one direction in the same order, but one side may be far ahead of the other.

    A link is constructed as ``Kind(post, first, address)``: ``first`` is true on exactly one side, and ``address`` is
    this node's own address. Nothing is set up before the first transfer. All methods return immediately and may be
    called from any thread; the works may settle on any thread::

        sender                                          receiver
        send(7, [view]) ── post ──► on_control          receive(7, [size]) ── post ──► on_control
        done: ``view`` may be mutated                   done: the buffers
    """

    @abstractmethod
    def send(self, transfer: int, buffers: Sequence[memoryview]) -> Work[None]:
        """Send flat, contiguous byte buffers once the peer is ready to receive; done once they may be mutated."""

    @abstractmethod
    def receive(self, transfer: int, sizes: Sequence[int]) -> Work[list[memoryview]]:
        """Receive the transfer with this number into new writable memory of ``sizes`` bytes."""

    def receive_in(self, transfer: int, sizes: Sequence[int], memory: Memory) -> Work[list[memoryview]]:
        """Receive into memory from the given allocator; a link that cannot do so uses its own allocator."""
        return self.receive(transfer, sizes)

    @abstractmethod
    def on_control(self, facts: Any) -> None:
        """Handle data posted by the peer's link."""

    @abstractmethod
    def discard(self, error: Exception, transfer: int | None = None) -> None:
        """Fail all open transfers with ``error`` after an error, a deadline or a death; the next use reopens the link.

        The peer's link is notified, so that its transfers fail, too. Idempotent; does not block.

        Args:
            transfer: fail only the send with this number; the others still arrive.
        """
