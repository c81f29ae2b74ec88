"""Where a group goes that was launched without a word about it."""

from __future__ import annotations

from .inventory import ClusterShape, Inventory
from .node import NodePlacementStrategy
from .packed import PackedPlacementStrategy
from .strategy import PlacementStrategy


def default_strategy(cluster: ClusterShape) -> PlacementStrategy:
    """One process per accelerator of the cluster; without accelerators, one process on node 0."""
    num_accelerators = Inventory(cluster).num_accelerators
    if num_accelerators:
        return PackedPlacementStrategy(0, num_accelerators - 1)
    return NodePlacementStrategy([0])
