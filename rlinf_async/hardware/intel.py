"""The family of Intel's discrete GPUs: detection on the PCI bus, visibility by ``ONEAPI_DEVICE_SELECTOR``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rlinf_async.hardware import sysfs
from rlinf_async.hardware.accelerator import AcceleratorFamily, AcceleratorType
from rlinf_async.hardware.cards import Card, Device, all_devices, visible_devices

_VENDOR: Final = 0x8086
_DRIVER: Final = "level_zero:"


class IntelGpus(AcceleratorFamily):
    type = AcceleratorType.INTEL_GPU
    visibility_variable = "ONEAPI_DEVICE_SELECTOR"
    collective_backend = "ccl"
    nic_variable = "CCL_MNIC_NAME"
    torch_platform = "xpu"

    def read_cards(self, root: Path) -> Sequence[Card]:
        gpus = [each for each in sysfs.pci_functions(root, _VENDOR) if each.is_display and not each.is_on_board]
        return [Card(index, "", f"{gpu.device:04x}") for index, gpu in enumerate(gpus)]

    def get_visible(self, environ: Mapping[str, str], cards: Sequence[Card]) -> tuple[Device, ...]:
        """Apply only the selector's term for Level Zero devices, such as ``level_zero:0,1`` or ``level_zero:gpu``."""
        selector = environ.get(self.visibility_variable)
        if selector is None:
            return all_devices(cards)
        numbers = _numbers(selector)
        if numbers in ("*", "gpu"):
            return all_devices(cards)
        return visible_devices(self.visibility_variable, numbers, cards)

    def get_variables(self, visible: Sequence[str]) -> dict[str, str]:
        # A selector must select something, so an empty list is written as the exclusion of all devices.
        return {self.visibility_variable: _DRIVER + ",".join(visible) if visible else f"!{_DRIVER}*"}

    def read_variables(self, environ: Mapping[str, str]) -> list[str]:
        return [entry for entry in _numbers(environ.get(self.visibility_variable, "")).split(",") if entry.isdecimal()]


def _numbers(selector: str) -> str:
    """Return the device part of the ``level_zero:`` or ``*:`` term; empty if no term selects Level Zero devices."""
    for term in selector.split(";"):
        driver, _, devices = term.strip().lower().partition(":")
        if driver in ("level_zero", "*"):
            return devices.strip()
    return ""
