"""``AcceleratorFamily``, the interface to one vendor's accelerators, and ``Accelerators``, a node's devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final

from rlinf_async.hardware.cards import Card, Device, all_devices, visible_devices


class AcceleratorType(StrEnum):
    """Names of the known families."""

    NV_GPU = "NV_GPU"
    AMD_GPU = "AMD_GPU"
    INTEL_GPU = "INTEL_GPU"
    NPU = "NPU"
    MUSA_GPU = "MUSA_GPU"
    KUNLUN_XPU = "KUNLUN_XPU"
    NO_ACCEL = "NO_ACCEL"


class AcceleratorFamily(ABC):
    """Interface to one vendor's accelerators: detection, visibility variables, torch back ends.

    Attributes:
        type: the family's name; an ``AcceleratorType``, or a custom name.
        visibility_variable: environment variable that limits the devices visible to a process.
        collective_backend: name of the ``torch.distributed`` back end.
        nic_variable: environment variable that selects the back end's network interface.
        torch_platform: submodule of ``torch`` that drives the devices, and their name in ``torch.device``.
        torch_extension: module to import first, because it provides that submodule.
        sends_directly: True if two workers can exchange device memory through the collective back end.
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
        """Return all devices of this machine; empty, without a warning, if there is no driver.

        Args:
            root: folder that contains ``dev`` and ``sys``.
        """

    def get_visible(self, environ: Mapping[str, str], cards: Sequence[Card]) -> tuple[Device, ...]:
        """Return the devices that the environment leaves visible, in its order."""
        value = environ.get(self.visibility_variable)
        return all_devices(cards) if value is None else visible_devices(self.visibility_variable, value, cards)

    def get_variables(self, visible: Sequence[str]) -> dict[str, str]:
        """Return environment variables that make exactly these devices visible."""
        return {self.visibility_variable: ",".join(visible)}

    def read_variables(self, environ: Mapping[str, str]) -> list[str]:
        """Return the ids of the devices that an environment makes visible; the inverse of ``get_variables``."""
        value = environ.get(self.visibility_variable, "")
        return [entry.strip() for entry in value.split(",") if entry.strip()]


FAKE_MODEL: Final = "fake"
"""Model name of a fake device."""

REHEARSAL: Final = "RLINF_REHEARSAL"
"""Environment variable that is 1 for workers on a node with fake devices."""


def is_rehearsal(environ: Mapping[str, str]) -> bool:
    """True if a process with this environment runs with fake accelerators."""
    return environ.get(REHEARSAL) == "1"


@dataclass(frozen=True)
class Accelerators:
    """A node's accelerators that workers may use, all of one family.

    Attributes:
        type: the family's name; ``"NO_ACCEL"`` if there are no devices.
        devices: the devices in counting order.
        rehearsed: True if the devices are fake.
    """

    type: str = AcceleratorType.NO_ACCEL.value
    devices: tuple[Device, ...] = ()
    rehearsed: bool = False

    @property
    def model(self) -> str:
        """Model of the node's first device, such as ``"NV_GPU:H200"``; empty if there are no devices."""
        return f"{self.type}:{self.devices[0].model}" if self.devices else ""
