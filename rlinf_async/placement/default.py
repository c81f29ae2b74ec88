"""The default placement of a group."""

from __future__ import annotations

from rlinf_async.placement.node_strategy import NodePlacementStrategy
from rlinf_async.placement.numbering import ClusterShape, Inventory
from rlinf_async.placement.packed import PackedPlacementStrategy
from rlinf_async.placement.strategy import PlacementStrategy


def default_strategy(cluster: ClusterShape) -> PlacementStrategy:
    """One process per accelerator of the cluster; without accelerators, one process on node 0."""
    num_accelerators = Inventory(cluster).num_accelerators
    if num_accelerators:
        return PackedPlacementStrategy(0, num_accelerators - 1)
    return NodePlacementStrategy([0])
