"""What a cluster has, counted through: nodes from 0, and the accelerators of all nodes from 0."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from rlinf_async.address import NodeInfo

# An error message names each node of a small cluster, and only counts those of a large one.
_NODES_NAMED = 8


class ClusterShape(Protocol):
    """What placement needs to know of a cluster: its nodes, with ranks 0 to n-1."""

    @property
    def nodes(self) -> Sequence[NodeInfo]: ...


class Inventory:
    """The nodes of a cluster by rank; its accelerators are numbered through in the order of the nodes."""

    def __init__(self, cluster: ClusterShape) -> None:
        self.nodes = sorted(cluster.nodes, key=lambda node: node.node_rank)
        self._by_rank = {node.node_rank: node for node in self.nodes}
        # _starts[i] is the number of the first accelerator of the i-th node; the last entry is the total.
        self._starts = list(accumulate((node.num_accelerators for node in self.nodes), initial=0))

    @property
    def num_accelerators(self) -> int:
        return self._starts[-1]

    def get_node(self, node_rank: int) -> NodeInfo | None:
        return self._by_rank.get(node_rank)

    def locate(self, accelerator: int) -> tuple[NodeInfo, int]:
        """The node of an accelerator (0 <= accelerator < num_accelerators), and its position there."""
        index = bisect_right(self._starts, accelerator) - 1
        return self.nodes[index], accelerator - self._starts[index]

    def get_first_accelerators(self) -> dict[int, int]:
        """Rank of each node → the number of its first accelerator."""
        return {node.node_rank: start for node, start in zip(self.nodes, self._starts, strict=False)}

    def describe_accelerators(self) -> str:
        """For example ``4 (node 0 'a': 2, node 1 'b': 2)``."""
        named = [f"{name_node(node)}: {node.num_accelerators}" for node in self.nodes[:_NODES_NAMED]]
        if len(self.nodes) > _NODES_NAMED:
            named.append(f"and {len(self.nodes) - _NODES_NAMED} more nodes")
        return f"{self.num_accelerators} ({', '.join(named)})"

    def describe_nodes(self) -> str:
        """For example ``nodes 0-3``."""
        if not self.nodes:
            return "no nodes"
        ranks = format_ranks([node.node_rank for node in self.nodes])
        return f"nodes {ranks}" if len(self.nodes) > 1 else f"node {ranks} only"


def name_node(node: NodeInfo) -> str:
    return f"node {node.node_rank} '{node.name}'"


def format_ranks(ranks: Sequence[int]) -> str:
    """Ascending ranks in the grammar of the configuration: ``[0, 1, 2, 5]`` is ``0-2,5``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
