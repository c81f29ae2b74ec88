"""``DeviceLink``: interface of a transport between two workers' GPUs; ``Link`` with tensors as buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from rlinf_async.work import Work


class DeviceLink(ABC):
    """A transport between a device of this process and a device of ONE peer, for both directions.

    As ``Link`` in everything but the buffers: flat, contiguous tensors of ``torch.uint8`` on the link's device.  Sent
    is what the caller's current stream has written by the time of the call; what is received can be used in any stream
    at once.
    """

    @abstractmethod
    def send(self, transfer: int, buffers: Sequence[torch.Tensor]) -> Work[None]:
        """Sends the buffers once the peer receives; done when they may be mutated.  Until then the link holds them."""

    @abstractmethod
    def receive(self, transfer: int, sizes: Sequence[int]) -> Work[list[torch.Tensor]]:
        """Receives what the peer sends under this number: new tensors of ``sizes`` bytes, the receiver's own."""

    @abstractmethod
    def on_control(self, facts: Any) -> None:
        """What the opposite number has posted."""

    @abstractmethod
    def discard(self, error: Exception, transfer: int | None = None) -> None:
        """As ``Link.discard``."""
