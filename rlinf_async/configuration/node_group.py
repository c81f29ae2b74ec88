"""``NodeGroup``: labelled nodes of a cluster, the numbering of their hardware, their environments; built-in groups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from rlinf_async.address import NodeInfo
from rlinf_async.configuration.env_config import NodeEnvConfig
from rlinf_async.configuration.ranks import format_ranks
from rlinf_async.errors import ConfigError
from rlinf_async.hardware import Accelerator, NodeHardwareConfig

CLUSTER_GROUP = "cluster"
"""Label of the built-in group that contains all nodes and whose ranks refer to accelerators."""
NODE_GROUP = "node"
"""Label of the built-in group that contains all nodes and whose ranks refer to nodes."""
RESERVED = (CLUSTER_GROUP, NODE_GROUP)
ACCELERATOR = Accelerator.HW_TYPE
"""The kind of hardware that placement ranks refer to by default."""


@dataclass(frozen=True)
class NodeGroup:
    """A labelled group of a cluster's nodes. Placement ranks refer to either the group's hardware or its nodes.

    RLinf calls this ``NodeGroupInfo``.

    Attributes:
        label: name of the group.
        nodes: nodes in the order in which their hardware is counted.
        hardware_type: kind of hardware that ranks refer to; None for accelerators, if any node has accelerators.
        ignore_hardware: True if ranks refer to nodes, whatever their hardware.
        env_configs: the nodes' interpreters and environment variables.
        hardware: hardware that the configuration describes.
    """

    label: str
    nodes: tuple[NodeInfo, ...]
    hardware_type: str | None = None
    ignore_hardware: bool = False
    env_configs: tuple[NodeEnvConfig, ...] = ()
    hardware: NodeHardwareConfig | None = field(default=None, compare=False)

    @property
    def node_ranks(self) -> list[int]:
        """The nodes' ranks in the cluster."""
        return [node.node_rank for node in self.nodes]

    @cached_property
    def counted_hardware(self) -> str | None:
        """The kind of hardware that ranks refer to; None if they refer to nodes."""
        if self.ignore_hardware:
            return None
        if self.hardware_type is not None:
            return self.hardware_type
        return ACCELERATOR if any(node.num_accelerators for node in self.nodes) else None

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The rank of each node's first piece of hardware in the group, followed by the total number."""
        return tuple(accumulate((self.count_on(node) for node in self.nodes), initial=0))

    @property
    def hardware_resource_count(self) -> int:
        """The number of pieces of hardware, or of nodes if ranks refer to nodes."""
        return self.starts[-1]

    @property
    def local_hardware_ranks(self) -> list[list[int]]:
        """The positions of each node's pieces of hardware."""
        return [list(range(self.count_on(node))) for node in self.nodes]

    def count_on(self, node: NodeInfo) -> int:
        """Return the number of the group's ranks on a node."""
        kind = self.counted_hardware
        if kind is None:
            return 1
        described = self._described.get(node.node_rank, 0) if self.hardware and kind == self.hardware.type else 0
        return max(node.get_hw_resource_count(kind), described)

    def get_node_by_hardware_rank(self, hardware_rank: int) -> NodeInfo:
        """Return the node of a piece of hardware. Raises ConfigError if the group has no such piece."""
        return self.locate(hardware_rank)[0]

    def get_local_hardware_rank(self, hardware_rank: int) -> int:
        """Return the position of a piece of hardware on its node; -1 if ranks refer to nodes. Raises ConfigError."""
        node_and_position = self.locate(hardware_rank)
        return -1 if self.counted_hardware is None else node_and_position[1]

    def locate(self, hardware_rank: int) -> tuple[NodeInfo, int]:
        """Return the node of a piece of hardware, and the piece's position on that node. Raises ConfigError."""
        if not 0 <= hardware_rank < self.hardware_resource_count:
            raise ConfigError(
                f"Hardware rank {hardware_rank} is out of range: node group '{self.label}' has "
                f"{self.hardware_resource_count}"
            )
        index = bisect_right(self.starts, hardware_rank) - 1
        return self.nodes[index], hardware_rank - self.starts[index]

    def group_ranks_to_global_ranks(self, hardware_ranks: Sequence[int], cluster: Sequence[NodeInfo]) -> list[int]:
        """Return the cluster-wide numbers of the group's accelerators, or node ranks if its ranks refer to nodes."""
        first = dict(zip((node.node_rank for node in cluster), _first_accelerators(cluster), strict=True))
        located = [self.locate(rank) for rank in hardware_ranks]
        if self.counted_hardware is None:
            return [node.node_rank for node, _ in located]
        return [first[node.node_rank] + position for node, position in located]

    def get_hardware_infos(self, node_rank: int) -> list[Any]:
        """Return the details of the counted hardware on a node, as detected or, failing that, as configured."""
        kind = self.counted_hardware
        found = [info for each in self._node(node_rank).hardware_resources if each.type == kind for info in each.infos]
        if found or self.hardware is None or kind != self.hardware.type:
            return found
        return [config for config in self.hardware.configs if config.node_rank == node_rank]

    def get_node_env_vars(self, node_rank: int) -> dict[str, str]:
        """Return the variables of the group's workers on a node. Raises ConfigError if the node is not in the group."""
        self._node(node_rank)
        return {
            name: value
            for config in self.env_configs
            if node_rank in config.node_ranks
            for name, value in config.env_vars.items()
        }

    def get_node_python_interpreter_path(self, node_rank: int) -> str | None:
        """Return the interpreter of the group's workers on a node; None means the node's own.

        Raises:
            ConfigError: the node is not in the group, or two entries set different interpreters.
        """
        self._node(node_rank)
        paths = {
            config.python_interpreter_path: None
            for config in self.env_configs
            if node_rank in config.node_ranks and config.python_interpreter_path
        }
        if len(paths) > 1:
            raise ConfigError(
                f"node group '{self.label}' has several interpreters for node {node_rank}: {', '.join(map(str, paths))}"
            )
        return next(iter(paths), None)

    def _node(self, node_rank: int) -> NodeInfo:
        for node in self.nodes:
            if node.node_rank == node_rank:
                return node
        raise ConfigError(
            f"node {node_rank} is not in node group '{self.label}', which has {format_ranks(self.node_ranks) or 'none'}"
        )

    @cached_property
    def _described(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for config in self.hardware.configs if self.hardware else ():
            counts[config.node_rank] = counts.get(config.node_rank, 0) + 1
        return counts


NodeGroupInfo = NodeGroup
"""RLinf's name for ``NodeGroup``."""


def built_in_groups(nodes: Sequence[NodeInfo]) -> tuple[NodeGroup, NodeGroup]:
    """Return the groups that every cluster has: ``cluster`` and ``node``, both with all nodes."""
    ordered = tuple(sorted(nodes, key=lambda node: node.node_rank))
    return NodeGroup(CLUSTER_GROUP, ordered), NodeGroup(NODE_GROUP, ordered, ignore_hardware=True)


def labelled_groups(nodes: Sequence[NodeInfo], taken: Collection[str]) -> tuple[NodeGroup, ...]:
    """Return a group for each node label (``labels=`` of a hosts file) that no other group has taken."""
    labels = dict.fromkeys(label for node in nodes for label in node.node_labels if label not in taken)
    return tuple(NodeGroup(label, tuple(node for node in nodes if label in node.node_labels)) for label in labels)


def _first_accelerators(nodes: Sequence[NodeInfo]) -> list[int]:
    return list(accumulate((node.num_accelerators for node in nodes), initial=0))[:-1]
