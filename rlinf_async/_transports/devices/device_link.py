"""``DeviceLink``: the interface of a transport between two workers' GPUs, like ``Link`` but with tensors as buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from rlinf_async.work import Work


class DeviceLink(ABC):
    """A transport between a device of this process and a device of ONE peer, for both directions.

    It differs from ``Link`` only in its buffers: flat, contiguous tensors of ``torch.uint8`` on the link's device. A
    send covers all data written by the caller's current stream before the call; a received tensor can be used in any
    stream immediately.
    """

    @abstractmethod
    def send(self, transfer: int, buffers: Sequence[torch.Tensor]) -> Work[None]:
        """Send the buffers once the peer is ready. Done once they may be mutated; the link holds them until then."""

    @abstractmethod
    def receive(self, transfer: int, sizes: Sequence[int]) -> Work[list[torch.Tensor]]:
        """Receive the transfer with this number into new tensors of ``sizes`` bytes."""

    @abstractmethod
    def on_control(self, facts: Any) -> None:
        """Handle data posted by the peer's link."""

    @abstractmethod
    def discard(self, error: Exception, transfer: int | None = None) -> None:
        """Fail open transfers, as ``Link.discard`` does."""
