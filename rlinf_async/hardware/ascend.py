"""Huawei's Ascend processors: one device node each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rlinf_async.hardware import sysfs
from rlinf_async.hardware.accelerator import AcceleratorFamily, AcceleratorType
from rlinf_async.hardware.cards import Card

VENDOR: Final = 0x19E5
_MODELS: Final = {0xD100: "310", 0xD500: "310P", 0xD801: "910", 0xD802: "910B", 0xD803: "910C"}


class AscendProcessors(AcceleratorFamily):
    type = AcceleratorType.NPU
    visibility_variable = "ASCEND_RT_VISIBLE_DEVICES"
    collective_backend = "hccl"
    nic_variable = "HCCL_SOCKET_IFNAME"
    torch_platform = "npu"
    torch_extension = "torch_npu"

    def read_cards(self, root: Path) -> Sequence[Card]:
        functions = sysfs.pci_functions(root, VENDOR)
        model = next((_MODELS[each.device] for each in functions if each.device in _MODELS), "")
        return [Card(number, "", f"Ascend{model}") for number in sysfs.device_nodes(root, "davinci")]
