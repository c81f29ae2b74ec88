"""What every placement strategy promises, and how a choice of devices becomes placements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence

from rlinf_async.address import NodeInfo
from rlinf_async.errors import ConfigError

from .inventory import ClusterShape, Inventory
from .placement import Placement

CLUSTER_GROUP = "cluster"
"""The node group of all nodes, with their accelerators."""
NODE_GROUP = "node"
"""The node group of all nodes, without their accelerators."""


class PlacementStrategy(ABC):
    """Decides where the ranks of a group run."""

    @abstractmethod
    def get_placement(self, cluster: ClusterShape, isolate_accelerator: bool = True) -> list[Placement]:
        """Places every rank: ``result[i]`` is rank ``i``.  The same arguments always give the same answer.

        Args:
            cluster: anything with ``nodes``.
            isolate_accelerator: a worker sees only the accelerators that it was given, not all of its node's.

        Raises:
            ConfigError: the cluster does not have what is asked for.
        """


def check_group_label(labels: str | Sequence[str] | None, known: Collection[str] = (CLUSTER_GROUP,)) -> str:
    """The one node group that ``labels`` means; all nodes by default."""
    if labels is None:
        return CLUSTER_GROUP
    asked = [labels] if isinstance(labels, str) else [str(label) for label in labels]
    for label in asked:
        if label not in known:
            raise ConfigError(
                f"Node group not found: {label!r}. Node groups are not defined for this cluster; "
                f"leave the group out, or use {' or '.join(repr(name) for name in known)}"
            )
    if len(asked) != 1:
        raise ConfigError(f"node groups {asked} overlap or are empty: name exactly one of {list(known)}")
    return asked[0]


def build_placements(
    inventory: Inventory,
    assignments: Sequence[tuple[NodeInfo, tuple[int, ...]]],
    *,
    isolate_accelerator: bool,
    node_group_label: str,
) -> list[Placement]:
    """Makes the placements of ranks 0, 1, … from their nodes and their devices' positions on them.

    A rank without devices of its own sees all of its node's, whatever ``isolate_accelerator`` says.
    """
    workers_on = Counter(node.node_rank for node, _ in assignments)
    node_order = {node_rank: order for order, node_rank in enumerate(workers_on)}
    first_accelerators = inventory.get_first_accelerators()
    everything = {
        node.node_rank: tuple(range(node.num_accelerators)) for node in inventory.nodes if node.node_rank in workers_on
    }
    placed: Counter[int] = Counter()
    placements = []
    for rank, (node, own) in enumerate(assignments):
        node_rank = node.node_rank
        visible = own if own and isolate_accelerator else everything[node_rank]
        first_own = own or visible[:1] or (-1,)
        placements.append(
            Placement(
                rank=rank,
                cluster_node_rank=node_rank,
                placement_node_rank=node_order[node_rank],
                local_accelerator_rank=first_own[0],
                accelerator_type=node.accelerator_type,
                local_rank=placed[node_rank],
                local_world_size=workers_on[node_rank],
                visible_accelerators=tuple(node.accelerators[position] for position in visible),
                isolate_accelerator=isolate_accelerator,
                local_hardware_ranks=own,
                node_group_label=node_group_label,
                global_accelerator_ids=tuple(first_accelerators[node_rank] + position for position in visible),
            )
        )
        placed[node_rank] += 1
    return placements
