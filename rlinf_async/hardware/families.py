"""Registry of accelerator families (Ascend, MUSA, Kunlun defined here), and detection of a node's accelerators."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from rlinf_async.errors import ConfigError
from rlinf_async.hardware import sysfs
from rlinf_async.hardware.accelerator import FAKE_MODEL, AcceleratorFamily, Accelerators, AcceleratorType
from rlinf_async.hardware.amd import AmdGpus
from rlinf_async.hardware.cards import Card, Device, find_repeated, wanted_device
from rlinf_async.hardware.hardware import Hardware, HardwareConfig, HardwareInfo, HardwareResource
from rlinf_async.hardware.intel import IntelGpus
from rlinf_async.hardware.nvidia import NvidiaGpus

Family = TypeVar("Family", bound="type[AcceleratorFamily]")

_HUAWEI: Final = 0x19E5
_MOORE_THREADS: Final = 0x1ED5
"""PCI vendor id of Moore Threads."""

_ASCEND_MODELS: Final = {0xD100: "310", 0xD500: "310P", 0xD801: "910", 0xD802: "910B", 0xD803: "910C"}

FAMILIES: Final[dict[str, AcceleratorFamily]] = {}
"""Maps each family's name to the family, in detection order."""


def register_accelerator(family: Family) -> Family:
    """Class decorator that registers another family, which detection tries after all earlier ones."""
    FAMILIES[str(family.type)] = family()
    return family


class AscendProcessors(AcceleratorFamily):
    """Huawei's Ascend processors, one device node each."""

    type = AcceleratorType.NPU
    visibility_variable = "ASCEND_RT_VISIBLE_DEVICES"
    collective_backend = "hccl"
    nic_variable = "HCCL_SOCKET_IFNAME"
    torch_platform = "npu"
    torch_extension = "torch_npu"

    def read_cards(self, root: Path) -> Sequence[Card]:
        functions = sysfs.pci_functions(root, _HUAWEI)
        model = next((_ASCEND_MODELS[each.device] for each in functions if each.device in _ASCEND_MODELS), "")
        return [Card(number, "", f"Ascend{model}") for number in sysfs.device_nodes(root, "davinci")]


class MusaGpus(AcceleratorFamily):
    """Moore Threads' GPUs, as listed on the PCI bus."""

    type = AcceleratorType.MUSA_GPU
    visibility_variable = "MUSA_VISIBLE_DEVICES"
    collective_backend = "mccl"
    nic_variable = "MCCL_SOCKET_IFNAME"
    torch_platform = "musa"
    torch_extension = "torch_musa"
    sends_directly = True

    def read_cards(self, root: Path) -> Sequence[Card]:
        # A card also has a PCI function for audio.
        gpus = [each for each in sysfs.pci_functions(root, _MOORE_THREADS) if each.is_display]
        return [Card(index, "", f"{gpu.device:04x}") for index, gpu in enumerate(gpus)]


class KunlunProcessors(AcceleratorFamily):
    """Baidu's Kunlun processors, one device node each, which torch drives as ``cuda``."""

    type = AcceleratorType.KUNLUN_XPU
    visibility_variable = "CUDA_VISIBLE_DEVICES"
    collective_backend = "bkcl"
    nic_variable = "BKCL_SOCKET_IFNAME"
    torch_platform = "cuda"

    def read_cards(self, root: Path) -> Sequence[Card]:
        return [Card(number, "", "Kunlun") for number in sysfs.device_nodes(root, "xpu")]


for _family in (NvidiaGpus, AmdGpus, AscendProcessors, IntelGpus, MusaGpus, KunlunProcessors):
    register_accelerator(_family)


def get_family(accelerator_type: str) -> AcceleratorFamily | None:
    """Return the family with this name; None for ``"NO_ACCEL"``.

    Raises:
        ConfigError: the family is not registered.
    """
    family = FAMILIES.get(str(accelerator_type))
    if family is None and str(accelerator_type) not in ("", AcceleratorType.NO_ACCEL.value):
        raise ConfigError(f"Unsupported accelerator type {accelerator_type!r}; known are: {', '.join(FAMILIES)}")
    return family


def find_accelerators(
    environ: Mapping[str, str],
    wanted: Sequence[str] | None = None,
    fake: int | None = None,
    root: Path = Path("/"),
) -> Accelerators:
    """Detect this node's accelerators, all from the first family that has any device.

    Args:
        environ: environment whose visibility variable (``CUDA_VISIBLE_DEVICES``) selects devices, as it does for the
            driver.
        wanted: device ids from the hosts file, which override the variable.
        fake: number of fake devices to declare, regardless of real ones.
        root: folder that contains ``dev`` and ``sys``.

    Raises:
        ConfigError: ``wanted`` names a device that the node lacks, or names one twice.
    """
    if fake is not None:
        declared = tuple(Device(str(index), FAKE_MODEL) for index in range(fake))
        return Accelerators(AcceleratorType.NV_GPU.value, declared, rehearsed=True) if fake else Accelerators()
    if wanted is not None and not wanted:
        return Accelerators()
    for name, family in FAMILIES.items():
        if cards := family.read_cards(root):
            if wanted is None:
                devices = family.get_visible(environ, cards)
            else:
                devices = tuple(wanted_device(entry, cards) for entry in wanted)
                if (twice := find_repeated(wanted, cards)) is not None:
                    raise ConfigError(
                        f"gpus={','.join(wanted)} names a GPU twice, the second time by {twice}\n"
                        "  fix: name each GPU once in the hosts file"
                    )
            return Accelerators(name, devices) if devices else Accelerators()
    for entry in wanted or ():
        wanted_device(entry, ())
    return Accelerators()


@Hardware.register(is_default_hw=True)
class Accelerator(Hardware):
    """Accelerators as a kind of hardware; the model is an ``AcceleratorType`` and a name, such as ``"NV_GPU:H200"``."""

    HW_TYPE = "Accelerator"

    @classmethod
    def enumerate(cls, node_rank: int, configs: Sequence[HardwareConfig] | None = None) -> HardwareResource | None:
        found = find_accelerators(os.environ)
        infos = tuple(HardwareInfo(cls.HW_TYPE, f"{found.type}:{device.model}") for device in found.devices)
        return HardwareResource(cls.HW_TYPE, infos) if infos else None
