"""A version that leaves this machine, and its way to one other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from rlinf_async.weights.memory.slot import SlotWriter
from rlinf_async.weights.memory.store import Store
from rlinf_async.weights.model.delta import Delta
from rlinf_async.work import Work

if TYPE_CHECKING:
    from rlinf_async.weights.plane.outlet import Outlet

FIRST_PIECE: Final = 16 << 20
"""Bytes that travel as one tensor, at first: so much is packed soon.  Each is twice as large as the one before."""

LARGEST_PIECE: Final = 256 << 20
"""A piece costs as much time as a megabyte or more."""


def piece_sizes(nbytes: int) -> list[int]:
    """The pieces that so many bytes travel in, from the sender to a machine that does not pass them on."""
    sizes: list[int] = []
    while nbytes:
        sizes.append(min(nbytes, FIRST_PIECE << min(len(sizes), 16), LARGEST_PIECE))
        nbytes -= sizes[-1]
    return sizes


class Outgoing:
    """A version in this machine's memory.

    Args:
        seconds: that its receivers have for it.

    Attributes:
        sizes: of the pieces that all of it travels in, in bytes.
        packed: bytes from its beginning that will not change any more.
        facts: its extra and its checksum, once it is published.
    """

    def __init__(self, version: int, store: Store, writer: SlotWriter, seconds: float) -> None:
        self.version = version
        self.store = store
        self.writer = writer
        self.seconds = seconds
        self.sizes = piece_sizes(self.nbytes)
        self.packed = 0
        self.facts: tuple[bytes, int] | None = None

    @property
    def nbytes(self) -> int:
        return self.writer.leaves.nbytes

    def publish(self) -> None:
        self.packed = self.nbytes
        self.facts = self.writer.extra, self.writer.checksum


class Coming:
    """A version on its way to one machine.

    Args:
        delta: what travels instead of everything.
        source: the host of another machine, that passes it on; None: it comes from here.

    Attributes:
        sizes: of the pieces, in bytes.
        waiting: who is to hear of it.
        has_room: pieces are expected there.
        is_asked: its source was told to pass it on.
        is_told: it was said that there is no more.
        sent: pieces that have left.
    """

    def __init__(self, outgoing: Outgoing, waiting: list[Outlet], delta: Delta | None, source: Outlet | None) -> None:
        self.outgoing = outgoing
        self.waiting = waiting
        self.source = source
        self.has_room = False
        self.is_asked = False
        self.is_told = False
        self.sent: list[Work[None]] = []
        self._whole: torch.Tensor | None = outgoing.writer.leaves if delta is None else delta.body
        self._is_there = delta is not None
        self.sizes = outgoing.sizes if delta is None else piece_sizes(len(delta.body))
        outgoing.store.hold(outgoing.writer)  # until ``end``: no other version comes into that memory

    def next_piece(self) -> torch.Tensor | None:
        """None where there is no more, or it is not packed yet."""
        if self._whole is None or len(self.sent) == len(self.sizes):
            return None
        start = sum(self.sizes[: len(self.sent)])
        end = start + self.sizes[len(self.sent)]
        return self._whole[start:end] if self._is_there or end <= self.outgoing.packed else None

    def end(self, *, given_up: bool = False) -> None:
        """It has landed, or is not wanted any more; what has left is let go of piece by piece."""
        self._whole = None  # which keeps the memory
        self.outgoing.store.let_go(self.outgoing.writer)
        for work in self.sent if given_up else ():
            if not work.done():
                work._lose_interest()


class FarNode:
    """One machine.

    Attributes:
        number: of the node.
        outlets: the receivers there; the first receives for all, the *host*.
        is_hosted: the first knows that it is the host.
        line: on which it gets its tensors; no two ever have the same.
        memory, version: what has landed there last.
        coming: what is on its way.
        attempts: hosts to which it could not be sent.
        is_doubted: the host was late.
        needs_all, has_failed: what has changed is not enough for it; that was tried with the version under way.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.outlets: list[Outlet] = []
        self.is_hosted = False
        self.line = 0
        self.memory: Any = None
        self.version = 0
        self.coming: Coming | None = None
        self.attempts = 0
        self.is_doubted = False
        self.needs_all = False
        self.has_failed = False

    def expects(self, version: int) -> bool:
        """Whether that one is on its way."""
        return self.coming is not None and self.coming.outgoing.version == version
