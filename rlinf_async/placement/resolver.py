"""Resolves hardware ranks, counted across one or several node groups, to nodes and pieces; looks up node groups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rlinf_async.address import NodeInfo
from rlinf_async.configuration import ACCELERATOR, CLUSTER_GROUP, NODE_GROUP, NodeGroup, built_in_groups, did_you_mean
from rlinf_async.errors import ConfigError
from rlinf_async.placement.numbering import ClusterShape, describe_counts, describe_nodes, name_node


@dataclass(frozen=True)
class HardwarePiece:
    """The hardware of one rank: a piece at a position on its node, or the node itself (position -1)."""

    group: NodeGroup
    node: NodeInfo
    position: int


class MultiNodeGroupResolver:
    """Numbers several node groups' hardware consecutively, in the groups' order.

    Args:
        node_groups: at least one group; no two may share a piece of hardware.

    Raises:
        ConfigError: the list is empty, or two groups share hardware.
    """

    def __init__(self, node_groups: Sequence[NodeGroup]) -> None:
        if not node_groups:
            raise ConfigError("no node group is named: name one, or leave the group out for the whole cluster")
        self.node_groups = tuple(node_groups)
        self._starts = list(accumulate((group.hardware_resource_count for group in node_groups), initial=0))
        if len(node_groups) > 1:
            _check_no_overlap([(group, group.counted_hardware) for group in node_groups])

    @property
    def hardware_resource_count(self) -> int:
        """The number of ranks."""
        return self._starts[-1]

    @property
    def hardware_types(self) -> list[str] | None:
        """The kind of hardware that each group's ranks refer to; None if any group's ranks refer to nodes."""
        kinds = [group.counted_hardware for group in self.node_groups]
        known = [kind for kind in kinds if kind is not None]
        return known if len(known) == len(kinds) else None

    def check_counts_hardware(self, strategy: str) -> None:
        """Raise ConfigError if any group's ranks refer to nodes."""
        bare = [group for group in self.node_groups if group.counted_hardware is None]
        if bare:
            nodes = describe_nodes([node for group in bare for node in group.nodes])
            raise ConfigError(
                f"{strategy} placement requires hardware resources, and {describe_groups(bare)} none in {nodes}: "
                "use NodePlacementStrategy to place processes on nodes"
            )

    @property
    def noun(self) -> str:
        """The kind of thing that a rank refers to: ``"accelerator"``, ``"Franka"``, or a mixed ``"hardware rank"``."""
        kinds = {group.counted_hardware for group in self.node_groups}
        if len(kinds) > 1:
            return "hardware rank"
        (kind,) = kinds
        return "node" if kind is None else "accelerator" if kind == ACCELERATOR else kind

    def locate(self, hardware_rank: int) -> HardwarePiece:
        """Return the piece of hardware, or the node, with this rank.

        Raises:
            ConfigError: there is no such rank. The methods below raise it, too.
        """
        if not 0 <= hardware_rank < self.hardware_resource_count:
            raise ConfigError(f"Hardware rank {hardware_rank} is out of range: {self.describe()}")
        index = bisect_right(self._starts, hardware_rank) - 1
        group = self.node_groups[index]
        node, position = group.locate(hardware_rank - self._starts[index])
        return HardwarePiece(group, node, -1 if group.counted_hardware is None else position)

    def get_node_by_hardware_rank(self, global_hw_rank: int) -> NodeInfo:
        return self.locate(global_hw_rank).node

    def get_node_group(self, global_hw_rank: int) -> NodeGroup:
        return self.locate(global_hw_rank).group

    def get_node_group_label(self, global_hw_rank: int) -> str:
        return self.locate(global_hw_rank).group.label

    def get_local_hardware_rank(self, global_hw_rank: int) -> int:
        """Return a piece's position among the pieces of its kind on its node; -1 if the rank refers to a node."""
        return self.locate(global_hw_rank).position

    def get_hardware_type_for_rank(self, global_hw_rank: int) -> str | None:
        return self.locate(global_hw_rank).group.counted_hardware

    def describe(self) -> str:
        """Return text such as ``the cluster has 4 (node 0 'a': 2, node 1 'b': 2)``."""
        counts = [(node, group.count_on(node)) for group in self.node_groups for node in group.nodes]
        return f"{describe_groups(self.node_groups)} {describe_counts(counts)}"


def groups_of(cluster: ClusterShape) -> dict[str, NodeGroup]:
    """Return a dict that maps each label to its node group, including the built-in ``cluster`` and ``node``."""
    built_in = built_in_groups(cluster.nodes)
    own: Sequence[NodeGroup] = getattr(cluster, "node_groups", None) or ()
    return {group.label: group for group in (*built_in, *own)}


def find_groups(cluster: ClusterShape, labels: str | Sequence[str] | None) -> list[NodeGroup]:
    """Return the node groups with these labels, in the order of the labels.

    Args:
        labels: a label, several labels joined by commas, a list of labels, or None for the whole cluster.

    Raises:
        ConfigError: a group does not exist, the list is empty, or a label appears twice.
    """
    asked = [CLUSTER_GROUP] if labels is None else _split_labels(labels)
    known = groups_of(cluster)
    for label in asked:
        if label not in known:
            raise ConfigError(f"Node group not found: {label!r}{_suggest_groups(label, known)}")
    if not asked or len(set(asked)) != len(asked):
        raise ConfigError(f"node groups {asked} overlap or are empty: name each group once")
    return [known[label] for label in asked]


def _split_labels(labels: str | Sequence[str]) -> list[str]:
    named = [labels] if isinstance(labels, str) else labels
    if not isinstance(named, Collection) or not all(isinstance(label, str) for label in named):
        raise ConfigError(f"a node group is named by its label, several by a list of labels, got {labels!r}")
    return [label.strip() for each in named for label in each.split(",")]


def nodes_of(node_groups: Sequence[NodeGroup]) -> list[tuple[NodeGroup, NodeInfo]]:
    """Return several groups' nodes, each with its group.

    Raises:
        ConfigError: two groups share a node.
    """
    if len(node_groups) > 1:
        _check_no_overlap([(group, None) for group in node_groups])
    return [(group, node) for group in node_groups for node in group.nodes]


def describe_groups(node_groups: Sequence[NodeGroup]) -> str:
    """Return text such as ``the cluster has`` or ``node groups 'a', 'b' have``."""
    labels = [group.label for group in node_groups]
    if labels in ([CLUSTER_GROUP], [NODE_GROUP]):
        return "the cluster has"
    named = ", ".join(map(repr, labels))
    return f"node group {named} has" if len(labels) == 1 else f"node groups {named} have"


def _suggest_groups(label: str, known: Collection[str]) -> str:
    if set(known) == {CLUSTER_GROUP, NODE_GROUP}:
        return (
            ". Node groups are not defined for this cluster; "
            f"leave the group out, or use {CLUSTER_GROUP!r} or {NODE_GROUP!r}"
        )
    return f"{did_you_mean(label, known)}; this cluster has {', '.join(map(repr, known))}"


def _check_no_overlap(counted: Sequence[tuple[NodeGroup, str | None]]) -> None:
    seen: dict[tuple[int, str | None], NodeGroup] = {}
    for group, kind in counted:
        for node in group.nodes:
            other = seen.setdefault((node.node_rank, kind), group)
            if other is not group:
                raise ConfigError(
                    f"node groups {other.label!r} and {group.label!r} overlap: {name_node(node)} is in both, "
                    "and its ranks would be counted twice"
                )
