"""A placement strategy that puts processes on listed nodes, without devices of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async.errors import ConfigError
from rlinf_async.placement.numbering import ClusterShape, describe_nodes, read_ranks
from rlinf_async.placement.placement import Placement
from rlinf_async.placement.resolver import describe_groups, find_groups, nodes_of
from rlinf_async.placement.strategy import PlacementStrategy, Seat, build_placements


class NodeRankError(ConfigError, IndexError):
    """A node rank that the cluster lacks; also an ``IndexError``, which RLinf raises in this case."""


@dataclass(frozen=True)
class NodePlacementStrategy(PlacementStrategy):
    """A strategy that runs one process per entry of ``node_ranks``; each process sees all of its node's accelerators.

    Rank ``i`` runs on the node that is the ``i``-th entry.

    Args:
        node_ranks: for each process, its node's rank, counted from 0 across the groups' nodes; in the whole cluster,
            these are the cluster's node ranks.
        node_group_label: one or several node groups whose nodes are counted; by default the whole cluster.

    Raises:
        ConfigError: ``node_ranks`` is empty; in ``get_placement``, a node group is unknown, or two groups overlap.
        NodeRankError: in ``get_placement``, the groups have no such node.
    """

    node_ranks: Sequence[int]
    node_group_label: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.node_ranks, int):
            raise ConfigError(
                f"node_ranks lists a node for each process, got {self.node_ranks!r}: NodePlacementStrategy([0] * "
                f"{self.node_ranks}) is so many on node 0, NodePlacementStrategy([{self.node_ranks}]) one on that node"
            )
        object.__setattr__(self, "node_ranks", read_ranks(self.node_ranks, "node_ranks"))
        if not self.node_ranks:
            raise ConfigError("The node_ranks list must not be empty: name a node for each process")

    def get_placement(self, cluster: ClusterShape, isolate_accelerator: bool = True) -> list[Placement]:
        groups = find_groups(cluster, self.node_group_label)
        places = nodes_of(groups)
        seats = []
        for node_rank in self.node_ranks:
            if not 0 <= node_rank < len(places):
                raise NodeRankError(
                    f"Node rank {node_rank} is out of range: {describe_groups(groups)} "
                    f"{describe_nodes([node for _, node in places])} (counted from 0)"
                )
            seats.append(Seat(*places[node_rank]))
        return build_placements(cluster, seats, isolate_accelerator=isolate_accelerator)
