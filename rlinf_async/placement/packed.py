"""Processes side by side on a range of accelerators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlinf_async.errors import ConfigError

from .inventory import ClusterShape, Inventory, format_ranks, name_node
from .placement import Placement
from .strategy import PlacementStrategy, build_placements, check_group_label


@dataclass(frozen=True)
class PackedPlacementStrategy(PlacementStrategy):
    """Fills a range of accelerators, with one or several for each process and none for two.

    Accelerators are counted through the cluster, in the order of the nodes.  Each process takes the lowest one
    that is free and those that follow it at ``stride``; a process never spans two nodes.

    Args:
        start_hardware_rank, end_hardware_rank: first and last accelerator of the range.
        num_hardware_per_process: accelerators for each process.
        stride: distance between the accelerators of one process.
        node_group: ``None`` or ``"cluster"``, which both mean every node.

    Example:
        >>> [list(ranks) for ranks in PackedPlacementStrategy(0, 7, 2, stride=2).get_hardware_ranks()]
        [[0, 2], [1, 3], [4, 6], [5, 7]]

    Raises:
        ConfigError: the range is negative or empty, or does not divide evenly among processes; in
            ``get_placement``, it is beyond the cluster, a process would span nodes, or the node group is unknown.
    """

    start_hardware_rank: int
    end_hardware_rank: int
    num_hardware_per_process: int = 1
    stride: int = 1
    node_group: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        start, end = self.start_hardware_rank, self.end_hardware_rank
        if start < 0:
            raise ConfigError(f"The start hardware rank {start} must be non-negative")
        if end < start:
            raise ConfigError(
                f"The end hardware rank {end} must be greater than or equal to the start hardware rank {start}"
            )
        if self.num_hardware_per_process < 1 or self.stride < 1:
            raise ConfigError(
                f"num_hardware_per_process ({self.num_hardware_per_process}) and stride ({self.stride}) "
                "must be at least 1"
            )
        block = self.num_hardware_per_process * self.stride
        if (end - start + 1) % block:
            raise ConfigError(
                f"The number of hardware {end - start + 1} (ranks {start}-{end}) must be divisible by "
                f"num_hardware_per_process * stride ({block})"
            )

    def get_hardware_ranks(self) -> Iterator[range]:
        """The accelerators of process 0, 1, …, counted through the cluster."""
        # Strided processes interlock: `stride` of them fill a block without holes, then the next block begins.
        block = self.num_hardware_per_process * self.stride
        for block_start in range(self.start_hardware_rank, self.end_hardware_rank + 1, block):
            for first in range(block_start, block_start + self.stride):
                yield range(first, block_start + block, self.stride)

    def get_placement(self, cluster: ClusterShape, isolate_accelerator: bool = True) -> list[Placement]:
        label = check_group_label(self.node_group)
        inventory = Inventory(cluster)
        if not inventory.num_accelerators:
            raise ConfigError(
                f"Packed placement requires hardware resources, and the cluster ({inventory.describe_nodes()}) "
                "has no accelerators: use NodePlacementStrategy to place processes on its nodes"
            )
        if self.end_hardware_rank >= inventory.num_accelerators:
            raise ConfigError(
                f"Hardware ranks {self.start_hardware_rank}-{self.end_hardware_rank} exceed available resources: "
                f"the cluster has {inventory.describe_accelerators()}"
            )
        assignments = []
        for rank, hardware_ranks in enumerate(self.get_hardware_ranks()):
            node, position = inventory.locate(hardware_ranks[0])
            last_node, last_position = inventory.locate(hardware_ranks[-1])
            if node is not last_node:
                raise ConfigError(
                    f"Rank {rank} would get accelerators {format_ranks(hardware_ranks)}, which lie on "
                    f"{name_node(node)} to {name_node(last_node)}; a process cannot spread across multiple nodes: "
                    f"the cluster has {inventory.describe_accelerators()}"
                )
            assignments.append((node, tuple(range(position, last_position + 1, self.stride))))
        return build_placements(inventory, assignments, isolate_accelerator=isolate_accelerator, node_group_label=label)
