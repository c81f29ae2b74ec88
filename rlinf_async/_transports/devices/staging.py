"""``StagedLink``, the fallback ``DeviceLink``: copies to pinned CPU memory, sends over Gloo, copies to a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlinf_async._transports.devices.device_link import DeviceLink
from rlinf_async._transports.devices.gpu_tensors import SideStream
from rlinf_async._transports.gloo_pair import GlooPair
from rlinf_async._transports.link import Post
from rlinf_async._transports.pair import Pair
from rlinf_async._transports.paired import PairedLink
from rlinf_async._transports.transfer import MemorySend, ReceiveTransfer, make_room


class PinnedMemory:
    """An allocator of page-locked memory, which a GPU accesses directly; torch pools the freed memory."""

    def take(self, nbytes: int) -> memoryview:
        """Return memory, like ``Memory.take``."""
        memory: Any = torch.empty(nbytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available()).numpy()
        return memoryview(memory)


pinned = PinnedMemory()


class _StagedSend(MemorySend):
    """A send whose copies to the CPU start immediately, in the caller's stream."""

    def __init__(self, number: int, buffers: Sequence[torch.Tensor]) -> None:
        views = [pinned.take(buffer.nbytes) for buffer in buffers]
        for view, buffer in zip(views, buffers, strict=True):
            _flat(view).copy_(buffer, non_blocking=True)
        super().__init__(number, views)
        on_gpu = [buffer for buffer in buffers if buffer.is_cuda]
        self._copied = torch.cuda.current_stream(on_gpu[0].device).record_event() if on_gpu else None

    def chunks(self) -> list[torch.Tensor]:
        if self._copied is not None:
            self._copied.synchronize()
        return super().chunks()


class _StagedReceive(ReceiveTransfer[torch.Tensor]):
    def __init__(self, number: int, sizes: Sequence[int], device: torch.device, stream: SideStream) -> None:
        super().__init__(number, sizes)
        self._device = device
        self._stream = stream
        self._views: list[memoryview] = []

    def allocate(self) -> None:
        self.chunks, self._views = make_room(self.sizes, pinned)

    def complete(self) -> None:
        views, self._views, self.chunks = self._views, [], []
        try:
            with self._stream.until_done():
                tensors = [_flat(view).to(self._device, copy=True) for view in views]
        except Exception as error:  # for example, the GPU may be out of memory
            self.fail(error)
        else:
            self.finish(tensors)


def _flat(view: memoryview) -> torch.Tensor:
    return torch.frombuffer(view, dtype=torch.uint8) if view.nbytes else torch.empty(0, dtype=torch.uint8)


class StagedLink(PairedLink[torch.Tensor], DeviceLink):
    """A link that sends GPU memory over Gloo, with a copy to CPU memory on the sender and back on the receiver."""

    def __init__(self, post: Post, first: bool, address: str, device: torch.device) -> None:
        super().__init__(post, first, address)
        self._device = device
        self._stream = SideStream(device)

    def _make_pair(self) -> Pair:
        return GlooPair(self, self._first, self._address)

    def _make_sending(self, number: int, buffers: Sequence[torch.Tensor]) -> _StagedSend:
        return _StagedSend(number, buffers)

    def _make_receiving(self, number: int, sizes: Sequence[int]) -> _StagedReceive:
        return _StagedReceive(number, sizes, self._device, self._stream)
