"""``SendTransfer`` and ``ReceiveTransfer``: the two sides of a transfer, each a ``Work``; divides buffers into chunks.

Large buffers are sent from their own memory, in chunks of a few MiB, so that after an error a transfer can continue
with the first missing chunk. Small buffers share a chunk, because the overhead of a chunk equals sending a few hundred
kilobytes. Both sides compute the chunks from the sizes.
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
"""Flat bytes: a memoryview of CPU memory, or a tensor in GPU memory."""

_SMALL_BYTES: Final = 64 << 10

CHUNK_BYTES: Final = 4 << 20

_ALIGNMENT_BYTES: Final = 64


class Transfer(Work[T]):
    """A transfer requested from a link.

    Attributes:
        sizes: sizes of its buffers in bytes.
        tries: number of starts since a chunk last arrived.
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


class SendTransfer(Transfer[None]):
    """A transfer of buffers that the peer may request."""

    start = 0

    @abstractmethod
    def chunks(self) -> list[torch.Tensor]:
        """Return the flat bytes to send: views of large buffers, copies of small ones."""


class ReceiveTransfer(Transfer[list[Buffer]]):
    """A transfer of buffers that the peer has announced.

    Attributes:
        chunks: flat bytes to receive into, once allocated.
        buffers: the buffers made up of the chunks.
        arrived: number of complete chunks.
    """

    def __init__(self, number: int, sizes: Sequence[int]) -> None:
        super().__init__(number, sizes)
        self.chunks: list[torch.Tensor] = []
        self.buffers: list[Buffer] = []
        self.arrived = 0

    @abstractmethod
    def allocate(self) -> None:
        """Allocate the buffers. Raise MemoryError if memory is short."""

    def complete(self) -> None:
        buffers, self.buffers, self.chunks = self.buffers, [], []
        self.finish(buffers)


class MemorySend(SendTransfer):
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


class MemoryReceive(ReceiveTransfer[memoryview]):
    """A transfer into CPU memory from a pool that reuses memory released by receivers."""

    def __init__(self, number: int, sizes: Sequence[int], memory: Memory = warm) -> None:
        super().__init__(number, sizes)
        self._memory = memory

    def allocate(self) -> None:
        self.chunks, self.buffers = make_room(self.sizes, self._memory)


def make_room(sizes: Sequence[int], memory: Memory) -> tuple[list[torch.Tensor], list[memoryview]]:
    """Allocate a receive's chunks, and the buffers made up of them."""
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
    """Return the buffers that get their own chunks, the others' offsets in a common chunk, and that chunk's size."""
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
    """Return the memory as a tensor. The caller must keep the buffer; torch warns about read-only buffers."""
    if not buffer.readonly:
        return torch.frombuffer(buffer, dtype=torch.uint8)
    address = numpy.frombuffer(buffer, dtype=numpy.uint8).ctypes.data
    return torch.frombuffer((ctypes.c_ubyte * buffer.nbytes).from_address(address), dtype=torch.uint8)
