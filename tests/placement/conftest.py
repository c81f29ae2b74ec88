from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from rlinf_async.address import NodeInfo


@dataclass(frozen=True)
class Shape:
    nodes: list[NodeInfo]


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
