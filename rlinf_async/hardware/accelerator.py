"""``AcceleratorFamily``, the interface to one maker's accelerators, and ``Accelerators``, those that a node has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final

from rlinf_async.hardware.cards import Card, Device, all_devices, visible_devices


class AcceleratorType(StrEnum):
    """The families that are known; each is equal to its name."""

    NV_GPU = "NV_GPU"
    AMD_GPU = "AMD_GPU"
    INTEL_GPU = "INTEL_GPU"
    NPU = "NPU"
    MUSA_GPU = "MUSA_GPU"
    KUNLUN_XPU = "KUNLUN_XPU"
    NO_ACCEL = "NO_ACCEL"


class AcceleratorFamily(ABC):
    """Interface to one maker's accelerators: detection, visibility variables, back ends of torch.

    Attributes:
        type: the family's name; an ``AcceleratorType``, or a word of its own.
        visibility_variable: the environment variable that says which devices a process sees.
        collective_backend: of ``torch.distributed``.
        nic_variable: tells that back end which network interface to use.
        torch_platform: the module below ``torch`` that drives the devices; also their name in ``torch.device``.
        torch_extension: what must be imported for that module to be there.
        sends_directly: two workers exchange device memory through the collective back end.
    """

    type: ClassVar[str]
    visibility_variable: ClassVar[str]
    collective_backend: ClassVar[str]
    nic_variable: ClassVar[str]
    torch_platform: ClassVar[str]
    torch_extension: ClassVar[str | None] = None
    sends_directly: ClassVar[bool] = False

    @abstractmethod
    def read_cards(self, root: Path) -> Sequence[Card]:
        """All devices of this machine; none, quietly, without the driver.

        Args:
            root: where ``dev`` and ``sys`` are.
        """

    def get_visible(self, environ: Mapping[str, str], cards: Sequence[Card]) -> tuple[Device, ...]:
        """The devices that the environment leaves to its processes, in its order."""
        value = environ.get(self.visibility_variable)
        return all_devices(cards) if value is None else visible_devices(self.visibility_variable, value, cards)

    def get_variables(self, visible: Sequence[str]) -> dict[str, str]:
        """The environment of a process that shall see these devices and no other."""
        return {self.visibility_variable: ",".join(visible)}

    def read_variables(self, environ: Mapping[str, str]) -> list[str]:
        """The ids of the devices that a process with this environment sees; the reverse of ``get_variables``."""
        value = environ.get(self.visibility_variable, "")
        return [entry.strip() for entry in value.split(",") if entry.strip()]


FAKE_MODEL: Final = "fake"
"""The model of a device that is only declared."""

REHEARSAL: Final = "RLINF_REHEARSAL"
"""Set to 1 in the environment of workers on a node that only declares its devices."""


def is_rehearsal(environ: Mapping[str, str]) -> bool:
    """Whether the accelerators of the process with this environment are only declared."""
    return environ.get(REHEARSAL) == "1"


@dataclass(frozen=True)
class Accelerators:
    """The accelerators of a node that workers may use: all of one family.

    Attributes:
        type: the family; ``"NO_ACCEL"`` without devices.
        devices: in the order in which they are counted.
        rehearsed: they are only declared.
    """

    type: str = AcceleratorType.NO_ACCEL.value
    devices: tuple[Device, ...] = ()
    rehearsed: bool = False

    @property
    def model(self) -> str:
        """Of the node, which is its first device's: for example ``"NV_GPU:H200"``; empty without one."""
        return f"{self.type}:{self.devices[0].model}" if self.devices else ""
