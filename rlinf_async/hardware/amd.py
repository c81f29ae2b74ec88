"""The family of AMD GPUs: detection in the compute driver's sysfs topology, ROCR and HIP visibility."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rlinf_async.hardware import sysfs
from rlinf_async.hardware.accelerator import AcceleratorFamily, AcceleratorType
from rlinf_async.hardware.cards import Card, Device, find_card


class AmdGpus(AcceleratorFamily):
    type = AcceleratorType.AMD_GPU
    visibility_variable = "HIP_VISIBLE_DEVICES"
    collective_backend = "nccl"  # torch's name for RCCL
    nic_variable = "NCCL_SOCKET_IFNAME"
    torch_platform = "cuda"
    sends_directly = True

    def read_cards(self, root: Path) -> Sequence[Card]:
        cards: list[Card] = []
        topology = root / "sys/class/kfd/kfd/topology/nodes"
        for folder in sorted(topology.glob("[0-9]*"), key=lambda folder: int(folder.name)):
            known = sysfs.properties(folder / "properties")
            if known.get("simd_count"):  # only GPU nodes in the topology have SIMD units
                uuid = f"GPU-{known['unique_id']:016x}" if known.get("unique_id") else ""
                cards.append(Card(len(cards), uuid, _model(known.get("gfx_target_version", 0))))
        return cards

    def get_visible(self, environ: Mapping[str, str], cards: Sequence[Card]) -> tuple[Device, ...]:
        """Apply ``ROCR_VISIBLE_DEVICES`` first, because HIP numbers only the devices that ROCR leaves visible."""
        below = environ.get("ROCR_VISIBLE_DEVICES")
        if below is not None:
            left: list[Card] = []
            for entry in below.split(","):
                card = find_card(entry.strip(), cards)
                if card is None:
                    break
                left.append(replace(card, index=len(left)))
            cards = left
        return super().get_visible(environ, cards)


def _model(version: int) -> str:
    # 90402 is gfx942: minor and stepping have two decimal digits each in the number, but one hex digit each in the
    # name.
    major, rest = divmod(version, 10000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}" if version else "AMD"
