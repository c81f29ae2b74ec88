"""``DeviceLink``: interface of a transport between two workers' GPUs; ``Link`` with tensors as buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from rlinf_async.work import Work


class DeviceLink(ABC):
    """Transport between a device of this process and a device of ONE peer, for both directions.

    It differs from ``Link`` only in its buffers: flat, contiguous tensors of ``torch.uint8`` on the link's device. A
    send covers all data that the caller's current stream has written by the time of the call; a received tensor can be
    used in any stream at once.
    """

    @abstractmethod
    def send(self, transfer: int, buffers: Sequence[torch.Tensor]) -> Work[None]:
        """Send the buffers once the peer receives; done once they may be mutated. Until then the link holds them."""

    @abstractmethod
    def receive(self, transfer: int, sizes: Sequence[int]) -> Work[list[torch.Tensor]]:
        """Receive the transfer of this number into new tensors of ``sizes`` bytes."""

    @abstractmethod
    def on_control(self, facts: Any) -> None:
        """Handle data that the peer's link has posted."""

    @abstractmethod
    def discard(self, error: Exception, transfer: int | None = None) -> None:
        """Fail open transfers, as ``Link.discard`` does."""
