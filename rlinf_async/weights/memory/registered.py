"""Slots that CUDA knows of: a GPU copies from and to them at full speed, instead of by way of the driver's buffers."""

from __future__ import annotations

import logging

import torch

from rlinf_async.weights.memory.gpus import Gpus

logger = logging.getLogger(__name__)


class Registration:
    """Of one stretch of memory; it has to end before the memory is unmapped.  It ends once."""

    def __init__(self, gpus: Gpus, address: int, device: torch.device) -> None:
        self._gpus = gpus
        self._address = address
        self._device = device
        self._has_ended = False

    def end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        try:
            self._gpus.unregister(self._address, self._device)
        except Exception as error:  # the driver has gone away, and with it all that it knew
            logger.info("memory of weights could not be taken back from CUDA: %s", error)


class Registrar:
    """Registers memory; what is refused once is not asked for again, and copied more slowly.

    Args:
        read_only: it is mapped for reading only.
    """

    def __init__(self, gpus: Gpus, *, read_only: bool) -> None:
        self._gpus = gpus
        self._read_only = read_only
        self._is_refused = False

    def register(self, address: int, nbytes: int, device: torch.device) -> Registration | None:
        """In a thread: it takes a while.  None where CUDA does not want to."""
        if self._is_refused:
            return None
        try:
            self._gpus.register(address, nbytes, device, read_only=self._read_only)
        except Exception as error:
            self._is_refused = True
            logger.warning("weights are copied from and to %s at less than full speed: %s", device, error)
            return None
        return Registration(self._gpus, address, device)
