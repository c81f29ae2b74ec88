"""``Chart``: shows a placement as each component's ranks on each device and node, as data for tables and drawings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlinf_async.configuration import ACCELERATOR, CLUSTER_GROUP, NODE_GROUP
from rlinf_async.placement.numbering import ClusterShape
from rlinf_async.placement.placement import Placement
from rlinf_async.placement.resolver import groups_of


@dataclass(frozen=True)
class Spot:
    """A node's device, or the node itself for ranks without a device.

    Attributes:
        name: name such as ``"NV_GPU 0"`` or ``"Franka 1"``; empty for the node itself.
        ranks: maps each component to its ranks on this device, ascending; components without ranks are omitted.
    """

    name: str
    ranks: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class NodeChart:
    """A node with its node groups and devices; the node itself is the last spot if it has ranks without a device."""

    rank: int
    name: str
    labels: tuple[str, ...]
    spots: tuple[Spot, ...]


@dataclass(frozen=True)
class Chart:
    """A cluster's nodes and the components placed on them, in the order in which the components were given."""

    components: tuple[str, ...]
    nodes: tuple[NodeChart, ...]
    world_sizes: Mapping[str, int]


def make_chart(cluster: ClusterShape, placements: Mapping[str, Sequence[Placement]]) -> Chart:
    """Build the chart of components that have been placed on a cluster."""
    found: dict[tuple[int, str, int], dict[str, list[int]]] = {}
    for component, ranks in placements.items():
        for placement in ranks:
            for position in placement.local_hardware_ranks or (-1,):
                place = (placement.cluster_node_rank, placement.hardware_type, position)
                found.setdefault(place, {}).setdefault(component, []).append(placement.rank)
    labels: dict[int, list[str]] = {}
    robots: dict[int, dict[str, int]] = {}
    for group in groups_of(cluster).values():
        for node in group.nodes:
            if group.label not in (CLUSTER_GROUP, NODE_GROUP):
                labels.setdefault(node.node_rank, []).append(group.label)
            kind = group.counted_hardware
            if kind is not None and kind != ACCELERATOR:
                robots.setdefault(node.node_rank, {})[kind] = group.count_on(node)
    nodes = []
    for node in sorted(cluster.nodes, key=lambda node: node.node_rank):
        rank = node.node_rank
        spots = [
            Spot(f"{node.accelerator_type} {device}", found.get((rank, ACCELERATOR, position), {}))
            for position, device in enumerate(node.accelerators)
        ]
        for kind, count in robots.get(rank, {}).items():
            spots += [Spot(f"{kind} {position}", found.get((rank, kind, position), {})) for position in range(count)]
        if (rank, "", -1) in found or not spots:
            spots.append(Spot("", found.get((rank, "", -1), {})))
        nodes.append(NodeChart(rank, node.name, tuple(labels.get(rank, ())), tuple(spots)))
    return Chart(tuple(placements), tuple(nodes), {name: len(ranks) for name, ranks in placements.items()})
