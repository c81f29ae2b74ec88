"""``NcclLink``: the ``DeviceLink`` between two workers' GPUs over private NCCL process groups of two."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlinf_async._transports.devices.device_link import DeviceLink
from rlinf_async._transports.devices.nccl_pair import MakeGroup, NcclPair
from rlinf_async._transports.link import Post
from rlinf_async._transports.pair import Pair
from rlinf_async._transports.paired import PairedLink
from rlinf_async._transports.transfer import ReceiveTransfer, SendTransfer


class _DeviceSend(SendTransfer):
    def __init__(self, number: int, buffers: Sequence[torch.Tensor]) -> None:
        super().__init__(number, [buffer.nbytes for buffer in buffers])
        self._buffers = [buffer for buffer in buffers if buffer.nbytes]
        on_gpu = [buffer.device for buffer in buffers if buffer.is_cuda]
        self._written = torch.cuda.current_stream(on_gpu[0]).record_event() if on_gpu else None

    def chunks(self) -> list[torch.Tensor]:
        if self._written is not None:
            torch.cuda.current_stream().wait_event(self._written)
        return self._buffers


class _DeviceReceive(ReceiveTransfer[torch.Tensor]):
    def __init__(self, number: int, sizes: Sequence[int], device: torch.device) -> None:
        super().__init__(number, sizes)
        self._device = device

    def allocate(self) -> None:
        try:
            self.buffers = [torch.empty(size, dtype=torch.uint8, device=self._device) for size in self.sizes]
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error
        self.chunks = [buffer for buffer in self.buffers if buffer.nbytes]


class NcclLink(PairedLink[torch.Tensor], DeviceLink):
    """A link for GPU memory over two NCCL groups of two, created at the first transfer; NCCL finds the addresses."""

    def __init__(
        self, post: Post, first: bool, address: str, device: torch.device, make_group: MakeGroup | None = None
    ) -> None:
        super().__init__(post, first, address)
        self._device = device
        self._make_group = make_group

    def _make_pair(self) -> Pair:
        return NcclPair(self, self._first, self._device, self._make_group)

    def _make_sending(self, number: int, buffers: Sequence[torch.Tensor]) -> _DeviceSend:
        return _DeviceSend(number, buffers)

    def _make_receiving(self, number: int, sizes: Sequence[int]) -> _DeviceReceive:
        return _DeviceReceive(number, sizes, self._device)
