"""GPU negotiation between workers: finds this worker's GPU, tells peers, chooses the GPU link to each."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rlinf_async._core.own_logger import own_logger
from rlinf_async._messaging.peer import Peer
from rlinf_async._transports.devices.gpu_link_choice import Gpu, gpu_link_between
from rlinf_async._transports.link import Post
from rlinf_async.errors import ConfigError

if TYPE_CHECKING:
    from rlinf_async._transports.devices.device_link import DeviceLink
    from rlinf_async._transports.devices.own_gpu import OwnGpu

logger = own_logger(__name__)

SWITCH: Final = "RLINF_GPU_LINKS"
"""Environment variable of a worker; ``0`` sends its tensors, and those sent to it, by way of the CPU."""


class Devices:
    """This worker's GPU, and the links from it to each peer's GPU.

    Two workers announce their GPUs to each other when the first large tensor is sent between them. That tensor, and
    further ones until the answer arrives, go by way of the CPU. Only a user thread can tell which GPU it works on, and
    CUDA is never initialised for this purpose. A worker that learns of another's GPU therefore announces its own with
    the next message that it sends or receives while CUDA is in use.

    Args:
        send_gpu: posts the facts of a GPU to a peer.

    Raises:
        ConfigError: the environment's ``RLINF_GPU_LINKS`` is neither 0 nor 1.

    Attributes:
        own: GPU of this worker; None before it is known, or if there is none.
        is_awaited: True if a peer waits for the announcement of this GPU: call ``look`` from a user thread.
    """

    def __init__(self, send_gpu: Callable[[Peer, Sequence[Any]], None]) -> None:
        self._send_gpu = send_gpu
        self._lock = threading.Lock()
        self._waiting: list[Peer] = []
        self._is_out_of_order = _is_switched_off()
        self.own: OwnGpu | None = None
        self.is_awaited = False

    def look(self) -> None:
        """Find out which GPU the calling user thread works on."""
        if self.own is not None or self._is_out_of_order:
            return
        try:
            own = _find_own_gpu()
        except Exception as error:  # a driver that is too old, or gone
            logger.info("tensors of this worker's GPU go by way of the CPU: %s", error)
            self._is_out_of_order, self.is_awaited = True, False
            return
        if own is None:
            return
        with self._lock:
            self.own = self.own or own
            waiting, self._waiting = self._waiting, []
            self.is_awaited = False
        for peer in waiting:
            self._introduce(peer)

    def on_gpu(self, peer: Peer, machine: str, uuid: str, model: str, reachable: Sequence[str]) -> None:
        peer.gpu, peer.reachable = Gpu(machine, uuid, model), frozenset(reachable)
        with self._lock:
            if self.own is None:
                self._waiting.append(peer)
                self.is_awaited = not self._is_out_of_order
                return
        self._introduce(peer)

    def way_to(self, peer: Peer) -> str | None:
        """Return the GPU link to a peer; None if there is none, or as long as the peer has not announced its GPU."""
        if self.own is None or not peer.gpu_link.is_good:
            return None
        if peer.gpu is None:
            self._introduce(peer)
            return None
        # The receiver opens the sender's memory.
        return gpu_link_between(peer.gpu, self.own.gpu, peer.reachable)

    def make_link(self, name: str, post: Post, first: bool, address: str) -> DeviceLink:
        """Make the link, as ``OwnGpu.make_link``.

        Raises:
            ValueError: as there, or this worker has announced no GPU.
        """
        if self.own is None:
            raise ValueError(f"a peer wants a link {name!r}, and this worker has no GPU")
        return self.own.make_link(name, post, first, address)

    def _introduce(self, peer: Peer) -> None:
        with self._lock:
            if self.own is None or peer.knows_gpu:
                return
            peer.knows_gpu = True
        gpu = self.own.gpu
        self._send_gpu(peer, (gpu.machine, gpu.uuid, gpu.model, sorted(self.own.reachable)))


def _is_switched_off() -> bool:
    said = os.environ.get(SWITCH) or "1"
    if said not in ("0", "1"):
        raise ConfigError(f"{SWITCH}={said!r} in a worker's environment: 0 switches links between GPUs off, 1 is on")
    return said == "0"


def _find_own_gpu() -> OwnGpu | None:
    """Return the GPU of this thread, None if CUDA is not in use. Neither imports torch nor initialises CUDA for it."""
    is_in_use = getattr(sys.modules.get("torch.cuda"), "is_initialized", None)
    if is_in_use is None or not is_in_use():
        return None
    from rlinf_async._transports.devices.own_gpu import find_own_gpu

    return find_own_gpu()
