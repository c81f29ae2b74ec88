"""``CudaIpcLink``: a GPU link within a machine, whose receiver opens the sender's memory (CUDA IPC) and copies it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import torch

from rlinf_async._core.own_logger import own_logger
from rlinf_async._transports.devices.device_link import DeviceLink
from rlinf_async._transports.devices.device_memory import CudaMemory, DeviceMemory, IpcHandle, Mark
from rlinf_async._transports.devices.gpu_tensors import SideStream
from rlinf_async._transports.lazy_thread import DeferredActions, LazyThread
from rlinf_async._transports.link import Post
from rlinf_async._transports.transfer import Transfer
from rlinf_async.errors import TransferFailed
from rlinf_async.work import Work

logger = own_logger(__name__)

_LINGER_S: Final = 0.2


class _Offer(Transfer[None]):
    """An offer of buffers, which the sender keeps alive until the receiver has copied them."""

    def __init__(self, number: int, buffers: Sequence[torch.Tensor]) -> None:
        super().__init__(number, [buffer.nbytes for buffer in buffers])
        self.kept: list[Any] = list(buffers)


class CudaIpcLink(DeviceLink):
    """A link that sends handles of GPU memory; the receiver copies that memory into its own, on the device.

    Memory is shared only for the copy: **the sender keeps its tensors alive until its send is done**, the receiver
    closes the memory before it confirms, and a process that dies releases everything. The sender offers the tensors
    once its stream has written them; neither side waits for other work on its GPU. A copy is valid once the sender has
    confirmed that the memory was still unchanged::

        sender    "offer", 7, handles ──►                      ──► "kept", 7    send(7) is done
        receiver       opens, copies, closes, "received", 7 ──►                 receive(7) is done
    """

    def __init__(
        self, post: Post, first: bool, address: str, device: torch.device, memory: DeviceMemory | None = None
    ) -> None:
        self._post = post
        self._device = device
        self._memory = memory or CudaMemory()
        self._copying = LazyThread("rlinf-cuda-ipc", _LINGER_S)
        self._writing = LazyThread("rlinf-cuda-ipc-writing", _LINGER_S)
        self._stream = SideStream(device)
        self._deferred = DeferredActions()
        self._offers: dict[int, _Offer] = {}
        self._receivings: dict[int, Transfer[list[torch.Tensor]]] = {}
        self._copied: dict[int, list[torch.Tensor]] = {}
        self._newest = -1
        # Messages from the peer about transfers that this side has not requested yet.
        self._offered: dict[int, list[IpcHandle]] = {}
        self._withdrawn: dict[int, TransferFailed] = {}
        self._unwanted: dict[int, TransferFailed] = {}

    def __repr__(self) -> str:
        return f"<CudaIpcLink [{len(self._offers)} to send, {len(self._receivings)} to receive]>"

    def send(self, transfer: int, buffers: Sequence[torch.Tensor]) -> Work[None]:
        offer = _Offer(transfer, buffers)
        with self._deferred.locked():
            if transfer in self._unwanted:
                self._deferred.add(functools.partial(offer.fail, self._unwanted.pop(transfer)))
                return offer
            try:
                handles = [tuple(self._memory.export(buffer)) for buffer in buffers if buffer.nbytes]
                written = self._memory.mark(self._device)
                is_written = written.query()
                if not is_written:
                    self._writing.submit(functools.partial(self._offer_once_written, offer, handles, written))
            except Exception as error:
                self._deferred.add(functools.partial(offer.fail, error))
                self._post_facts("broken", [], [transfer], f"{type(error).__name__}: {error}")
                return offer
            self._offers[transfer] = offer
            if is_written:
                self._post_facts("offer", transfer, handles)
        return offer

    def _offer_once_written(self, offer: _Offer, handles: Sequence[tuple[Any, ...]], written: Mark) -> None:
        """Offer the buffers once the stream has written them, which may take seconds; runs on the link's thread."""
        try:
            written.synchronize()
        except Exception as error:
            self._break_offer(offer, error)
            return
        with self._deferred.locked():
            if self._offers.get(offer.number) is offer:  # the offer has not been abandoned
                self._post_facts("offer", offer.number, handles)

    def _break_offer(self, offer: _Offer, error: Exception) -> None:
        with self._deferred.locked():
            if self._offers.get(offer.number) is offer:
                self._fail([], [offer.number], error)
                self._post_facts("broken", [], [offer.number], f"{type(error).__name__}: {error}")

    def receive(self, transfer: int, sizes: Sequence[int]) -> Work[list[torch.Tensor]]:
        receiving: Transfer[list[torch.Tensor]] = Transfer(transfer, sizes)
        with self._deferred.locked():
            withdrawn = self._withdrawn.pop(transfer, None)
            if self._withdrawn:  # earlier ones are requested no more, because their messages were withdrawn, too
                self._withdrawn = {each: error for each, error in self._withdrawn.items() if each > transfer}
            if withdrawn is not None:
                self._deferred.add(functools.partial(receiving.fail, withdrawn))
                return receiving
            self._newest = max(self._newest, transfer)
            self._receivings[transfer] = receiving
            if transfer in self._offered:
                self._copy(receiving, self._offered.pop(transfer))
        return receiving

    def on_control(self, facts: Any) -> None:
        with self._deferred.locked():
            match facts:
                case "offer", number, handles:
                    told = [IpcHandle(*handle) for handle in handles]
                    if number in self._receivings:
                        self._copy(self._receivings[number], told)
                    else:
                        self._offered[number] = told
                case "received", number:
                    offer = self._offers.pop(number, None)
                    if offer is not None:
                        self._post_facts("kept", number)
                        self._deferred.add(functools.partial(offer.finish, None))
                case "kept", number:
                    tensors = self._copied.pop(number, None)
                    if tensors is not None:
                        self._deferred.add(functools.partial(self._receivings.pop(number).finish, tensors))
                case "broken", received, sent, text:
                    self._on_broken(received, sent, text)
                case _:
                    raise ValueError(f"a link does not know what to do with {facts!r}")

    def discard(self, error: Exception, transfer: int | None = None) -> None:
        with self._deferred.locked():
            received = list(self._receivings) if transfer is None else []
            sent = [number for number in self._offers if transfer in (None, number)]
            if received or sent:
                self._fail(received, sent, error)
                self._post_facts("broken", received, sent, f"{type(error).__name__}: {error}")

    def _post_facts(self, *facts: Any) -> None:
        self._deferred.add(lambda: self._post(facts))

    def _fail(self, received: Sequence[int], sent: Sequence[int], error: Exception) -> None:
        for transfer in [self._receivings.pop(number, None) for number in received]:
            if transfer is not None:
                self._copied.pop(transfer.number, None)
                self._deferred.add(functools.partial(transfer.fail, error))
        for offer in [self._offers.pop(number, None) for number in sent]:
            if offer is not None:
                self._deferred.add(functools.partial(offer.fail, error))

    def _on_broken(self, received: Sequence[int], sent: Sequence[int], text: str) -> None:
        error = TransferFailed(f"the peer gave it up: {text}")
        for number in sent:
            if self._offered.pop(number, None) is not None or number > self._newest:
                self._withdrawn[number] = error
        self._unwanted.update((number, error) for number in received if number not in self._offers)
        self._fail(sent, received, error)

    def _copy(self, receiving: Transfer[list[torch.Tensor]], handles: list[IpcHandle]) -> None:
        try:
            self._copying.submit(lambda: self._copy_now(receiving, handles))
        except RuntimeError as error:  # no thread can start for now
            self._break_receiving(receiving, error)

    def _copy_now(self, receiving: Transfer[list[torch.Tensor]], handles: list[IpcHandle]) -> None:
        number = receiving.number
        try:
            tensors = self._copies(receiving.sizes, handles)
        except Exception as error:
            with self._deferred.locked():
                self._break_receiving(receiving, error)
            return
        with self._deferred.locked():
            if self._receivings.get(number) is receiving:  # the transfer has not been abandoned
                self._copied[number] = tensors
                self._post_facts("received", number)

    def _break_receiving(self, receiving: Transfer[list[torch.Tensor]], error: Exception) -> None:
        if self._receivings.get(receiving.number) is receiving:
            self._fail([receiving.number], [], error)
            self._post_facts("broken", [receiving.number], [], f"{type(error).__name__}: {error}")

    def _copies(self, sizes: Sequence[int], handles: list[IpcHandle]) -> list[torch.Tensor]:
        if [size for size in sizes if size] != [handle.nbytes for handle in handles]:
            raise TransferFailed(f"buffers of {list(sizes)} bytes were to be received, and {handles} are offered")
        try:
            with self._stream.until_done():
                tensors = [torch.empty(size, dtype=torch.uint8, device=self._device) for size in sizes]
                for tensor, handle in zip([tensor for tensor in tensors if tensor.nbytes], handles, strict=True):
                    tensor.copy_(self._memory.open(handle, self._device), non_blocking=True)
        finally:
            # Close the memory before the sender learns about the arrival, because the sender may change it afterwards.
            self._close()
        return tensors

    def _close(self) -> None:
        try:
            self._memory.close()
        except Exception as error:
            logger.warning("memory of a peer's GPU could not be let go of: %s", error)
