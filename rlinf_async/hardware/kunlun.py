"""Baidu's Kunlun processors: one device node each; torch drives them under CUDA's name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlinf_async.hardware import sysfs
from rlinf_async.hardware.accelerator import AcceleratorFamily, AcceleratorType
from rlinf_async.hardware.cards import Card


class KunlunProcessors(AcceleratorFamily):
    type = AcceleratorType.KUNLUN_XPU
    visibility_variable = "CUDA_VISIBLE_DEVICES"
    collective_backend = "bkcl"
    nic_variable = "BKCL_SOCKET_IFNAME"
    torch_platform = "cuda"

    def read_cards(self, root: Path) -> Sequence[Card]:
        return [Card(number, "", "Kunlun") for number in sysfs.device_nodes(root, "xpu")]
