"""Reader of PCI functions, device nodes and property files in ``/sys`` and ``/dev``, for accelerator detection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PciFunction:
    """A PCI function: its address (such as ``"0000:3b:00.0"``), device id and class code."""

    address: str
    device: int
    pci_class: int

    @property
    def is_display(self) -> bool:
        return self.pci_class >> 16 == 0x03

    @property
    def is_on_board(self) -> bool:
        """True for devices on the processor's own bus, such as integrated graphics."""
        return self.address.split(":")[1:2] == ["00"]


def pci_functions(root: Path, vendor: int) -> Iterator[PciFunction]:
    """Yield the PCI functions of one vendor, by address."""
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _number(folder / "vendor") == vendor:
            yield PciFunction(folder.name, _number(folder / "device"), _number(folder / "class"))


def device_nodes(root: Path, prefix: str) -> list[int]:
    """Return the numbers of ``/dev/<prefix>0``, ``/dev/<prefix>1``, …, ascending."""
    pattern = re.compile(re.escape(prefix) + r"([0-9]+)", re.ASCII)
    found = (pattern.fullmatch(node.name) for node in (root / "dev").glob(f"{prefix}*"))
    return sorted(int(match[1]) for match in found if match)


def properties(path: Path) -> dict[str, int]:
    """Parse a file whose lines are ``name number``."""
    lines = (line.split() for line in read_text(path).splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdecimal()}


def read_text(path: Path) -> str:
    """Return the stripped content of a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    try:
        return int(read_text(path), 16)
    except ValueError:
        return -1
