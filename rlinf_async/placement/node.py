"""Processes on nodes, without devices of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async.errors import ConfigError

from .inventory import ClusterShape, Inventory
from .placement import Placement
from .strategy import CLUSTER_GROUP, NODE_GROUP, PlacementStrategy, build_placements, check_group_label


class NodeRankError(ConfigError, IndexError):
    """A node that the cluster does not have.  Also an ``IndexError``, which RLinf raises in its place."""


@dataclass(frozen=True)
class NodePlacementStrategy(PlacementStrategy):
    """One process per entry of ``node_ranks``, on that node; it sees all of the node's accelerators.

    Args:
        node_ranks: ranks of nodes in the cluster, each as often as processes are wanted there.  They are
            sorted: rank 0 runs on the lowest node.
        node_group_label: ``None``, ``"cluster"`` or ``"node"``, which all mean every node.

    Example:
        >>> NodePlacementStrategy([1, 0, 0]).node_ranks
        (0, 0, 1)

    Raises:
        ConfigError: ``node_ranks`` is empty; in ``get_placement``, an unknown node group.
        NodeRankError: in ``get_placement``, a node that the cluster does not have.
    """

    node_ranks: Sequence[int]
    node_group_label: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not self.node_ranks:
            raise ConfigError("The node_ranks list must not be empty: name a node for each process")
        object.__setattr__(self, "node_ranks", tuple(sorted(self.node_ranks)))

    def get_placement(self, cluster: ClusterShape, isolate_accelerator: bool = True) -> list[Placement]:
        label = check_group_label(self.node_group_label, (CLUSTER_GROUP, NODE_GROUP))
        inventory = Inventory(cluster)
        nodes = []
        for node_rank in self.node_ranks:
            node = inventory.get_node(node_rank)
            if node is None:
                raise NodeRankError(
                    f"Node rank {node_rank} is out of range: the cluster has {inventory.describe_nodes()}"
                )
            nodes.append(node)
        return build_placements(
            inventory,
            [(node, ()) for node in nodes],
            isolate_accelerator=isolate_accelerator,
            node_group_label=label,
        )
