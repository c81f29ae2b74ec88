"""Moore Threads' GPUs, as PCI lists them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rlinf_async.hardware import sysfs
from rlinf_async.hardware.accelerator import AcceleratorFamily, AcceleratorType
from rlinf_async.hardware.cards import Card

VENDOR: Final = 0x1ED5


class MusaGpus(AcceleratorFamily):
    type = AcceleratorType.MUSA_GPU
    visibility_variable = "MUSA_VISIBLE_DEVICES"
    collective_backend = "mccl"
    nic_variable = "MCCL_SOCKET_IFNAME"
    torch_platform = "musa"
    torch_extension = "torch_musa"
    sends_directly = True

    def read_cards(self, root: Path) -> Sequence[Card]:
        # A card has a function for sound besides.
        gpus = [each for each in sysfs.pci_functions(root, VENDOR) if each.is_display]
        return [Card(index, "", f"{gpu.device:04x}") for index, gpu in enumerate(gpus)]
