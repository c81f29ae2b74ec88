"""``Placement``, the result for one rank: its node, local rank and devices, as a frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_async._core import dialect


@dataclass(frozen=True)
class Placement:
    """The place of one rank: its node, its neighbours on the node, and its devices.

    Attributes:
        rank: the worker's rank in its group.
        cluster_node_rank: the node's rank in the cluster.
        placement_node_rank: the node's rank among the nodes that the group uses.
        local_accelerator_rank: position of the worker's first accelerator in the node's list. 0 if the worker has no
            accelerator of its own but sees the node's; -1 if it sees none.
        accelerator_type: the node's accelerator type, such as ``"NV_GPU"``, or ``"NO_ACCEL"``.
        local_rank: the worker's number among the group's workers on the node.
        local_world_size: number of the group's workers on the node.
        visible_accelerators: ids of the devices that the worker can see, as the node lists them (indices or UUIDs).
        isolate_accelerator: True if a worker with its own devices sees only those.
        local_hardware_ranks: positions of the worker's own hardware in the node's list; empty if the worker has none.
        node_group_label: label of the worker's node group.
        global_accelerator_ids: numbers of the visible devices, counted from 0 across the whole cluster.
        hardware_type: kind of the worker's own hardware, ``"Accelerator"`` or a robot type; empty if the worker has
            none.
    """

    rank: int
    cluster_node_rank: int
    placement_node_rank: int
    local_accelerator_rank: int
    accelerator_type: str
    local_rank: int
    local_world_size: int
    visible_accelerators: tuple[str, ...]
    isolate_accelerator: bool
    local_hardware_ranks: tuple[int, ...]
    node_group_label: str
    global_accelerator_ids: tuple[int, ...] = ()
    hardware_type: str = ""

    def __post_init__(self) -> None:
        if dialect.is_rlinf:
            for name in ("visible_accelerators", "local_hardware_ranks", "global_accelerator_ids"):
                object.__setattr__(self, name, list(getattr(self, name)))

    @property
    def node_local_rank(self) -> int:
        """``local_rank`` under its name in the worker's environment.

        ``LOCAL_RANK`` is a different variable; ``worker_environment`` documents it.
        """
        return self.local_rank

    @property
    def node_local_world_size(self) -> int:
        """``local_world_size`` under its name in the worker's environment."""
        return self.local_world_size
