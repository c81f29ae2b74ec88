"""Planning time of a placement: ten thousand ranks on a cluster that exists only as numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_async.address import NodeInfo
from rlinf_async.configuration import ClusterConfig, NodeGroup
from rlinf_async.placement import (
    ComponentPlacement,
    FlexiblePlacementStrategy,
    HybridComponentPlacement,
    ModelParallelComponentPlacement,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Placement,
)

from . import measure
from .measure import ITSELF, LIMIT, OURS, Case, Target
from .options import parse

BENCH = "placement"
ACCELERATORS = 8


@dataclass(frozen=True)
class Shape:
    nodes: tuple[NodeInfo, ...]
    node_groups: tuple[NodeGroup, ...] = ()


@dataclass(frozen=True)
class Plan:
    """One row: something that plans, and the number of ranks that it must have planned."""

    case: Case
    work: Callable[[], int]
    ranks: int


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(
        "What it costs to plan a placement.", rounds=7, arguments=None if arguments is None else [*arguments]
    )
    ranks = 10_000 if not options.quick else 400
    for plan in plans(ranks):
        if not options.wants(plan.case.name):
            continue
        rounds = measure.alternate(
            options.rounds,
            {OURS: lambda plan=plan: [timed(plan)], LIMIT: lambda: [timed_records(ranks)]},  # type: ignore[misc]
            warm_up=not options.quick,
        )
        measure.print_row({**plan.case.row(rounds), "loop": options.loop})


def plans(ranks: int) -> list[Plan]:
    """Return every case, for about this many ranks on nodes of eight accelerators."""
    num_nodes = ranks // ACCELERATORS
    cluster = Shape(make_nodes(num_nodes))
    every = num_nodes * ACCELERATORS
    listed = FlexiblePlacementStrategy([[rank] for rank in reversed(range(every))])
    section = grouped_section(num_nodes)
    grouped = Shape(cluster.nodes, ClusterConfig.from_dict_cfg(section).node_groups_for(cluster.nodes))
    last, thrice, groups = every - 1, every * 2 + every // 2, section["cluster"]["node_groups"]
    return [
        plan("packed", lambda: len(PackedPlacementStrategy(0, last).get_placement(cluster)), every),
        plan("packed_shared_view", lambda: len(PackedPlacementStrategy(0, last).get_placement(cluster, False)), every),
        plan("packed_strided", lambda: len(PackedPlacementStrategy(0, last, 2, 2).get_placement(cluster)), every // 2),
        plan("flexible", lambda: len(listed.get_placement(cluster)), every),
        plan("node", lambda: len(NodePlacementStrategy([*range(num_nodes)] * 8).get_placement(cluster)), num_nodes * 8),
        plan("components", lambda: place(HybridComponentPlacement, components(every), cluster), thrice),
        plan("node_groups", lambda: place(HybridComponentPlacement, section, grouped), every),
        plan("model_parallel", lambda: place(ModelParallelComponentPlacement, parallel(), cluster), thrice),
        plan("configuration", lambda: len(read_groups(section, cluster.nodes)), 2 + len(groups)),
    ]


def plan(name: str, work: Callable[[], int], ranks: int) -> Plan:
    return Plan(
        Case(
            BENCH, name, "ms", 1e3, limit="as many records of a placement, made without planning",
            targets=(Target(1.0, ITSELF),), note=f"{ranks} planned; the target is a second",
        ),
        work,
        ranks,
    )  # fmt: skip


def timed(plan: Plan) -> float:
    began = time.perf_counter()
    planned = plan.work()
    took = time.perf_counter() - began
    if planned != plan.ranks:
        raise RuntimeError(f"{plan.case.name} planned {planned} instead of {plan.ranks}")
    return took


def timed_records(count: int) -> float:
    began = time.perf_counter()
    records = [
        Placement(rank, rank, rank, 0, "NV_GPU", 0, 1, ("0",), True, (0,), "cluster", (rank,)) for rank in range(count)
    ]
    took = time.perf_counter() - began
    assert len(records) == count
    return took


def make_nodes(count: int) -> tuple[NodeInfo, ...]:
    ids = tuple(map(str, range(ACCELERATORS)))
    return tuple(NodeInfo(rank, f"n{rank}", "10.0.0.1", 64, ids, "NV_GPU", "NV_GPU:H200") for rank in range(count))


def components(every: int) -> dict[str, Any]:
    """Return a configuration with three components, one of which shares accelerators with another."""
    return {"cluster": {"component_placement": {"actor": "all", "rollout": f"all:0-{every // 2 - 1}", "env": "all"}}}


def parallel() -> dict[str, Any]:
    return {
        "cluster": {"component_placement": {"actor,rollout,reward": "all"}},
        "actor": {"model": {"tensor_model_parallel_size": 4}},
        "rollout": {"tensor_parallel_size": 2},
    }


def grouped_section(num_nodes: int) -> dict[str, Any]:
    """Return a configuration with groups of ten nodes, per-node variables, and components on all groups in a row."""
    labels = [f"g{first}" for first in range(0, num_nodes, 10)]
    groups = [
        {
            "label": label,
            "node_ranks": f"{first}-{min(first + 9, num_nodes - 1)}",
            "env_configs": [
                {"node_ranks": rank, "env_vars": [{"NIC": f"eth{rank}"}]}
                for rank in range(first, min(first + 10, num_nodes))
            ],
        }
        for label, first in zip(labels, range(0, num_nodes, 10), strict=True)
    ]
    rules = {"actor": {"node_group": labels, "placement": "all"}}
    return {"cluster": {"num_nodes": num_nodes, "component_placement": rules, "node_groups": groups}}


def read_groups(section: dict[str, Any], nodes: Sequence[NodeInfo]) -> tuple[NodeGroup, ...]:
    return ClusterConfig.from_dict_cfg(section).node_groups_for(nodes)


def place(kind: type[ComponentPlacement], section: dict[str, Any], cluster: Shape) -> int:
    """Plan every component; return the number of all ranks."""
    placement = kind(section, cluster)
    return sum(len(placement.get_strategy(name).get_placement(cluster)) for name in placement.components)


if __name__ == "__main__":
    main()
