"""Processes on accelerators that are listed one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async.address import NodeInfo
from rlinf_async.errors import ConfigError

from .inventory import ClusterShape, Inventory, name_node
from .placement import Placement
from .strategy import PlacementStrategy, build_placements, check_group_label


@dataclass(frozen=True)
class FlexiblePlacementStrategy(PlacementStrategy):
    """One process per list of accelerators; several processes may share an accelerator.

    Args:
        hardware_ranks_list: for each process its accelerators, counted through the cluster and all on one node.
            Each list is sorted, and the processes are ordered by their first accelerator.
        node_group_label: ``None`` or ``"cluster"``, which both mean every node.

    Example:
        >>> FlexiblePlacementStrategy([[4], [2, 1], [2]]).hardware_ranks_list
        ((1, 2), (2,), (4,))

    Raises:
        ConfigError: a list is empty or a rank negative; in ``get_placement``, an accelerator that the cluster does
            not have, one that is given twice to one process, a process that would span nodes, or an unknown
            node group.
    """

    hardware_ranks_list: Sequence[Sequence[int]]
    node_group_label: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not self.hardware_ranks_list:
            raise ConfigError("The hardware_ranks_list must not be empty: give each process its accelerators")
        for process, hardware_ranks in enumerate(self.hardware_ranks_list):
            if not hardware_ranks:
                raise ConfigError(f"The hardware ranks of process {process} must not be empty")
            if min(hardware_ranks) < 0:
                raise ConfigError(
                    f"The hardware ranks {list(hardware_ranks)} of process {process} must be non-negative"
                )
        processes = [tuple(sorted(hardware_ranks)) for hardware_ranks in self.hardware_ranks_list]
        processes.sort(key=lambda hardware_ranks: hardware_ranks[0])
        object.__setattr__(self, "hardware_ranks_list", tuple(processes))

    def get_placement(self, cluster: ClusterShape, isolate_accelerator: bool = True) -> list[Placement]:
        label = check_group_label(self.node_group_label)
        inventory = Inventory(cluster)
        return build_placements(
            inventory,
            [_assign(inventory, hardware_ranks) for hardware_ranks in self.hardware_ranks_list],
            isolate_accelerator=isolate_accelerator,
            node_group_label=label,
        )


def _assign(inventory: Inventory, hardware_ranks: Sequence[int]) -> tuple[NodeInfo, tuple[int, ...]]:
    """The node of a process and its devices' positions there; ``hardware_ranks`` ascend."""
    if hardware_ranks[-1] >= inventory.num_accelerators:
        raise ConfigError(
            f"Hardware rank {hardware_ranks[-1]} is out of range: the cluster has {inventory.describe_accelerators()}"
        )
    places = [inventory.locate(hardware_rank) for hardware_rank in hardware_ranks]
    node, last_node = places[0][0], places[-1][0]
    if node is not last_node:
        raise ConfigError(
            f"All hardware ranks {list(hardware_ranks)} of a process must be on the same node; "
            f"they lie on {name_node(node)} to {name_node(last_node)}: "
            f"the cluster has {inventory.describe_accelerators()}"
        )
    if len(set(hardware_ranks)) != len(hardware_ranks):
        raise ConfigError(f"All hardware ranks {list(hardware_ranks)} of a process must be unique")
    return node, tuple(position for _, position in places)
