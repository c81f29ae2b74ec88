"""``GlooLink``: a ``Link`` between two workers' CPU memory over a private Gloo process group of two."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_async._transports.gloo_pair import GlooPair
from rlinf_async._transports.link import Link
from rlinf_async._transports.memory import Memory
from rlinf_async._transports.pair import Pair
from rlinf_async._transports.paired import PairedLink
from rlinf_async._transports.transfer import MemoryReceive, MemorySend
from rlinf_async.work import Work


class GlooLink(PairedLink[memoryview], Link):
    """A link for large buffers in CPU memory over a Gloo process group of two, created at the first transfer.

    Only buffers below 64 KiB are copied. Received memory belongs to the receiver, and comes from a pool
    (``_transports/memory.py``). The bytes are neither encrypted nor authenticated, and Gloo listens on a port chosen by
    the kernel, on ``address`` only, so the nodes need a private network without a firewall between them. It takes some
    seconds to detect a broken connection.
    """

    def receive_in(self, transfer: int, sizes: Sequence[int], memory: Memory) -> Work[list[memoryview]]:
        return self._receive(MemoryReceive(transfer, sizes, memory))

    def _make_pair(self) -> Pair:
        return GlooPair(self, self._first, self._address)

    def _make_sending(self, number: int, buffers: Sequence[memoryview]) -> MemorySend:
        return MemorySend(number, buffers)

    def _make_receiving(self, number: int, sizes: Sequence[int]) -> MemoryReceive:
        return MemoryReceive(number, sizes)
