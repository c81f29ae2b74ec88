"""``Sending`` and ``Receiving``: one transfer over a link, each a ``Work``; divides its buffers into chunks.

Large buffers travel where they are, in chunks of a few MiB: after an error a transfer goes on with the chunk that has
not arrived.  Small ones travel together in one, because each costs as much as a few hundred kilobytes.  Both sides work
the chunks out from the sizes.
"""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy
import torch

from rlinf_async._transports.memory import Memory, warm
from rlinf_async.work import Work

T = TypeVar("T")
Buffer = TypeVar("Buffer")
"""Flat bytes: a memoryview of the CPU's memory, or a tensor of a GPU's."""

_SMALL_BYTES: Final = 64 << 10
"""Bytes of a buffer that is worth a chunk of its own."""

CHUNK_BYTES: Final = 4 << 20
"""Bytes of the largest chunk."""

_ALIGNMENT_BYTES: Final = 64
"""Of the buffers in a chunk, in bytes: any tensor can stand there."""


class Transfer(Work[T]):
    """One transfer that a link was asked for.

    Attributes:
        number: the two sides' name for it.
        sizes: of its buffers, in bytes.
        tries: how often it has begun since the last chunk arrived.
    """

    def __init__(self, number: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.number = number
        self.sizes = tuple(sizes)
        self.tries = 0

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)

    def _describe(self) -> str:
        return f"transfer {self.number} [{self.nbytes / (1 << 20):.1f} MiB] from worker to worker"

    def finish(self, value: T) -> None:
        self._settle(value)

    def fail(self, error: Exception) -> None:
        self._settle(error=error)


class Sending(Transfer[None]):
    """Buffers that the peer may ask for."""

    start = 0
    """The chunk with which it began last."""

    @abstractmethod
    def chunks(self) -> list[torch.Tensor]:
        """Flat bytes to send: views of large buffers, copies of small ones."""


class Receiving(Transfer[list[Buffer]]):
    """Buffers that the peer has promised.

    Attributes:
        chunks: flat bytes to receive into, once there is room.
        buffers: what the chunks are then the contents of.
        arrived: how many chunks are complete.
    """

    def __init__(self, number: int, sizes: Sequence[int]) -> None:
        super().__init__(number, sizes)
        self.chunks: list[torch.Tensor] = []
        self.buffers: list[Buffer] = []
        self.arrived = 0

    @abstractmethod
    def allocate(self) -> None:
        """Makes room.

        Raises:
            MemoryError: there is none.
        """

    def complete(self) -> None:
        """All chunks have arrived."""
        buffers, self.buffers, self.chunks = self.buffers, [], []
        self.finish(buffers)


class MemorySending(Sending):
    """Buffers in the CPU's memory."""

    def __init__(self, number: int, buffers: Sequence[memoryview]) -> None:
        super().__init__(number, [buffer.nbytes for buffer in buffers])
        self._buffers = buffers

    def chunks(self) -> list[torch.Tensor]:
        alone, together, nbytes = _divide(self.sizes)
        chunks = [part for index in alone for part in _split(_view(self._buffers[index]))]
        if nbytes:
            small = bytearray(nbytes)
            for index, offset in together:
                small[offset : offset + self.sizes[index]] = self._buffers[index]
            chunks.append(torch.frombuffer(small, dtype=torch.uint8))
        return chunks


class MemoryReceiving(Receiving[memoryview]):
    """Buffers in the CPU's memory; what the receiver lets go of is warm for the next one."""

    def __init__(self, number: int, sizes: Sequence[int], memory: Memory = warm) -> None:
        super().__init__(number, sizes)
        self._memory = memory

    def allocate(self) -> None:
        self.chunks, self.buffers = make_room(self.sizes, self._memory)


def make_room(sizes: Sequence[int], memory: Memory) -> tuple[list[torch.Tensor], list[memoryview]]:
    """Parcels to receive into, and the buffers that they are the contents of."""
    alone, together, nbytes = _divide(sizes)
    buffers = {index: memory.take(sizes[index]) for index in alone}
    views = [torch.frombuffer(buffer, dtype=torch.uint8) for buffer in buffers.values()]
    chunks = [part for view in views for part in _split(view)]
    small = memory.take(nbytes)
    buffers.update((index, small[offset : offset + sizes[index]]) for index, offset in together)
    if nbytes:
        chunks.append(torch.frombuffer(small, dtype=torch.uint8))
    return chunks, [buffers[index] for index in range(len(sizes))]


def _divide(sizes: Sequence[int]) -> tuple[list[int], list[tuple[int, int]], int]:
    """The buffers that travel alone, those that travel together with their offsets, and the bytes that these take."""
    alone = [index for index, size in enumerate(sizes) if size >= _SMALL_BYTES]
    together, nbytes = [], 0
    for index, size in enumerate(sizes):
        if size < _SMALL_BYTES:
            together.append((index, nbytes))
            nbytes += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return alone, together, nbytes


def _split(flat: torch.Tensor) -> list[torch.Tensor]:
    return [flat[start : start + CHUNK_BYTES] for start in range(0, len(flat), CHUNK_BYTES)]


def _view(buffer: memoryview) -> torch.Tensor:
    """The same memory as a tensor.  Whoever uses it keeps the buffer: torch would warn of one that is read-only."""
    if not buffer.readonly:
        return torch.frombuffer(buffer, dtype=torch.uint8)
    address = numpy.frombuffer(buffer, dtype=numpy.uint8).ctypes.data
    return torch.frombuffer((ctypes.c_ubyte * buffer.nbytes).from_address(address), dtype=torch.uint8)
