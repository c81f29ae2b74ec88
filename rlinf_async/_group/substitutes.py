"""``Substitutes``: plain state that chooses nodes on which to restart the ranks of lost nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from rlinf_async.address import NodeInfo
from rlinf_async.configuration import ACCELERATOR
from rlinf_async.hardware import AcceleratorType
from rlinf_async.placement import Placement


class Resident(NamedTuple):
    """A living rank of any group: its node, and whether it has its own accelerators."""

    node: int
    has_devices: bool


class Substitutes:
    """Chooses nodes for the ranks of one cluster's groups.

    A rank without hardware of its own goes to the node with the fewest ranks. A node with accelerators is replaced as a
    whole, by a spare node that has the same accelerators, all unused. As a result, ranks that shared devices share them
    again, and no rank gets another rank's devices.
    """

    def __init__(self, nodes: Sequence[NodeInfo]) -> None:
        self._nodes = nodes
        self._spares: dict[int, int] = {}

    def choose(self, placement: Placement, lost: Container[int], residents: Iterable[Resident]) -> int | None:
        """Return a node for a rank whose node is lost, or None; ``residents`` are all groups' living ranks."""
        groups = {label for node in self._nodes for label in node.node_labels}
        label = placement.node_group_label
        living = [
            node for node in self._nodes
            if node.node_rank not in lost and (label not in groups or label in node.node_labels)
        ]  # fmt: skip
        if placement.local_hardware_ranks:
            return self._spare(placement, living, residents)
        counts = Counter(resident.node for resident in residents)
        ranks = [node.node_rank for node in living]
        return min(ranks, key=lambda rank: (counts[rank], rank), default=None)

    def _spare(self, placement: Placement, living: Sequence[NodeInfo], residents: Iterable[Resident]) -> int | None:
        if placement.hardware_type != ACCELERATOR:  # a robot cannot move
            return None
        old = self._nodes[placement.cluster_node_rank]
        spares = [node.node_rank for node in living if _has_the_same(node, old)]
        chosen = self._spares.get(old.node_rank)
        if chosen not in spares:
            taken = {resident.node for resident in residents if resident.has_devices} | set(self._spares.values())
            chosen = next((rank for rank in spares if rank not in taken), None)
            if chosen is not None:
                self._spares[old.node_rank] = chosen
        return chosen

    def moved(self, placement: Placement, node: int, neighbours: int) -> Placement:
        """Return the placement on another node, with the corresponding devices (all, for a rank without its own).

        Args:
            neighbours: number of its group's ranks on the node.
        """
        old, new = self._nodes[placement.cluster_node_rank], self._nodes[node]
        positions = [old.accelerators.index(device) for device in placement.visible_accelerators]
        if positions and not placement.local_hardware_ranks:
            positions = list(range(new.num_accelerators))
        own = placement.local_hardware_ranks[:1] or positions[:1] or (-1,)
        first = sum(each.num_accelerators for each in self._nodes[:node])
        return replace(
            placement,
            cluster_node_rank=node,
            accelerator_type=new.accelerator_type if positions else AcceleratorType.NO_ACCEL.value,
            local_accelerator_rank=own[0],
            local_rank=neighbours,
            local_world_size=neighbours + 1,
            visible_accelerators=tuple(new.accelerators[position] for position in positions),
            global_accelerator_ids=tuple(first + position for position in positions),
        )


def _has_the_same(node: NodeInfo, old: NodeInfo) -> bool:
    is_alike = node.accelerator_model == old.accelerator_model and node.rehearsed == old.rehearsed
    return is_alike and node.num_accelerators >= old.num_accelerators > 0
