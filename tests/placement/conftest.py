from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from rlinf_async.address import NodeInfo
from rlinf_async.configuration import ClusterConfig, NodeGroup
from rlinf_async.hardware import HardwareConfig, NodeHardwareConfig


@dataclass(frozen=True)
class Shape:
    nodes: list[NodeInfo]
    node_groups: tuple[NodeGroup, ...] = ()


@dataclass(frozen=True)
class ArmConfig(HardwareConfig):
    pass


@pytest.fixture(scope="session")
def make_cluster() -> Callable[..., Shape]:
    """Makes a cluster of nodes 'a', 'b', …: ``make_cluster(2, ["GPU-7", "GPU-9"])`` has two nodes of two GPUs."""

    def make(*accelerators_by_node: int | list[str]) -> Shape:
        nodes = []
        for rank, accelerators in enumerate(accelerators_by_node):
            ids = [str(i) for i in range(accelerators)] if isinstance(accelerators, int) else accelerators
            nodes.append(
                NodeInfo(
                    node_rank=rank,
                    name=chr(ord("a") + rank % 26),
                    node_ip=f"10.0.0.{rank + 1}",
                    num_cpus=8,
                    accelerators=tuple(ids),
                    accelerator_type="NV_GPU" if ids else "NO_ACCEL",
                    accelerator_model="NV_GPU:H200" if ids else "",
                )
            )
        return Shape(nodes)

    return make


@pytest.fixture(scope="session")
def make_grouped(make_cluster: Callable[..., Shape]) -> Callable[..., Shape]:
    """The same with node groups: ``make_grouped([8, 0], a=0, cpu={"node_ranks": 1, "ignore_hardware": True})``; an
    entry ``arms=[1, 2]`` is a robot arm on node 1 and one on node 2.
    """

    def make(accelerators_by_node: list[Any], **groups: Any) -> Shape:
        shape = make_cluster(*accelerators_by_node)
        entries = [_entry(label, group) for label, group in groups.items()]
        registry = NodeHardwareConfig.config_registry
        registry["Arm"] = ArmConfig
        try:
            config = ClusterConfig.from_dict_cfg({"num_nodes": len(shape.nodes), "node_groups": entries})
        finally:
            del registry["Arm"]
        return replace(shape, node_groups=config.node_groups_for(shape.nodes))

    return make


def _entry(label: str, group: Any) -> dict[str, Any]:
    if isinstance(group, dict):
        return {"label": label, **group}
    if isinstance(group, list):
        configs = [{"node_rank": rank} for rank in dict.fromkeys(group)]
        ranks = sorted(set(group))
        return {"label": label, "node_ranks": ranks, "hardware": {"type": "Arm", "configs": configs}}
    return {"label": label, "node_ranks": group}
