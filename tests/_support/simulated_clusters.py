"""Clusters that exist only as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async.address import NodeInfo
from rlinf_async.configuration import NodeGroup


@dataclass(frozen=True)
class Simulated:
    nodes: tuple[NodeInfo, ...]
    node_groups: tuple[NodeGroup, ...] = ()


def simulate(hardware: Sequence[tuple[int, str]]) -> Simulated:
    """One node for each entry: the number of its accelerators, and their type."""
    return Simulated(
        tuple(
            NodeInfo(
                node_rank=rank,
                name=f"n{rank:03}",
                node_ip=f"10.0.{rank // 250}.{rank % 250}",
                num_cpus=8,
                accelerators=tuple(map(str, range(count))),
                accelerator_type=kind,
            )
            for rank, (count, kind) in enumerate(hardware)
        )
    )
