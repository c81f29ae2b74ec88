"""Cluster-wide numbering of nodes and accelerators from 0, ``ClusterShape``, and descriptions for errors."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Any, Protocol

from rlinf_async.address import NodeInfo
from rlinf_async.configuration import format_ranks
from rlinf_async.configuration.ranks import MAX_RANKS
from rlinf_async.errors import ConfigError

# An error message names each node of a small cluster, but only counts the nodes of a large one.
_MAX_NAMED_NODES = 8


class ClusterShape(Protocol):
    """Interface of a cluster to placement: its nodes, with ranks 0 to n-1.

    A shape may also have ``node_groups``, a sequence of the ``NodeGroup`` objects that its configuration defines.
    """

    @property
    def nodes(self) -> Sequence[NodeInfo]: ...


class AcceleratorNumbering:
    """A cluster's nodes by rank, with accelerators numbered from 0 in the nodes' order."""

    def __init__(self, cluster: ClusterShape) -> None:
        self.nodes = sorted(cluster.nodes, key=lambda node: node.node_rank)
        # For each node, the number of its first accelerator; finally, the total.
        self._starts = list(accumulate((node.num_accelerators for node in self.nodes), initial=0))

    @property
    def num_accelerators(self) -> int:
        return self._starts[-1]

    def get_first_accelerators(self) -> dict[int, int]:
        """Return a dict that maps each node's rank to the number of its first accelerator."""
        return {node.node_rank: start for node, start in zip(self.nodes, self._starts, strict=False)}


def read_ranks(values: Any, name: str) -> tuple[int, ...]:
    """Return values that a caller has given as a tuple of ints; ``name`` names them in errors.

    Raises:
        ConfigError: the values are not a list of whole numbers, or are more than a run can have.
    """
    try:
        # A range or generator may be endless.
        ranks = () if isinstance(values, str | bytes) else tuple(islice(values, MAX_RANKS + 1))
        if isinstance(values, str | bytes) or len(ranks) > MAX_RANKS or any(isinstance(rank, bool) for rank in ranks):
            raise TypeError
        return tuple(map(operator.index, ranks))
    except TypeError:
        raise ConfigError(f"{name} must be a list of at most {MAX_RANKS} whole numbers, got {values!r}") from None


def describe_counts(counts: Sequence[tuple[NodeInfo, int]]) -> str:
    """Return text such as ``4 (node 0 'a': 2, node 1 'b': 2)``."""
    named = [f"{name_node(node)}: {count}" for node, count in counts[:_MAX_NAMED_NODES]]
    if len(counts) > _MAX_NAMED_NODES:
        named.append(f"and {len(counts) - _MAX_NAMED_NODES} more nodes")
    return f"{sum(count for _, count in counts)} ({', '.join(named)})" if named else "none"


def describe_nodes(nodes: Sequence[NodeInfo]) -> str:
    """Return text such as ``nodes 0-3``."""
    if not nodes:
        return "no nodes"
    ranks = format_ranks(sorted(node.node_rank for node in nodes))
    return f"nodes {ranks}" if len(nodes) > 1 else f"node {ranks} only"


def name_node(node: NodeInfo) -> str:
    return f"node {node.node_rank} '{node.name}'"
