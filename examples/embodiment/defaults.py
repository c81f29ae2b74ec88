"""Defaults by the machine: placement, stages and threads, from CPUs, accelerators and the size of the policy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from common.schema import placed_components
from configuration import Configuration

from rlinf_async.address import NodeInfo

SMALL_POLICY = 200_000
"""Weights between hidden layers up to which a forward pass costs less than a message, and threads cost more than they
bring."""

MIN_SIMULATORS = 4
"""Simulators of an env worker with inference: with fewer, the forward pass costs more than their step."""


def fill_in(cfg: Configuration, nodes: Sequence[NodeInfo]) -> Configuration:
    """``cfg`` with everything chosen that it leaves open.

    A small policy is evaluated in the env workers, which take a CPU each, and trained by one actor rank with one
    thread: to average gradients of so few parameters takes longer than to compute them.  A large one gets a rollout
    group and an actor rank on every accelerator; without accelerators, all of a node's CPUs are one actor's threads.

    Args:
        nodes: the cluster's.
    """
    is_small = hidden_weights(cfg.actor.model.hidden_sizes) <= SMALL_POLICY
    placed = placed_components(cfg)
    inference = cfg.rollout.placement
    if inference == "auto":
        inference = "with_env" if is_small and "rollout" not in placed else "workers"
    defaults = {"env": _per_node(nodes, _env_ranks(cfg, nodes, inference))}
    devices = {"actor": cfg.actor.device, "rollout": cfg.rollout.device}
    for component in ("actor", "rollout") if inference == "workers" else ("actor",):
        accelerators = sum(node.num_accelerators for node in nodes)
        on_accelerators = accelerators and not is_small and devices[component] != "cpu"
        defaults[component] = f"0-{accelerators - 1}" if on_accelerators else _per_node(nodes[:1], 1)
    stages = cfg.rollout.pipeline_stage_num or (2 if inference == "workers" else 1)
    threads = cfg.actor.threads or (1 if is_small else max(1, nodes[0].num_cpus))
    placement = dict(cfg.cluster.component_placement)
    placement |= {name: rule for name, rule in defaults.items() if name not in placed}
    return replace(
        cfg,
        cluster=replace(cfg.cluster, component_placement=placement),
        rollout=replace(cfg.rollout, placement=inference, pipeline_stage_num=stages),
        actor=replace(cfg.actor, threads=threads),
    )


def hidden_weights(hidden_sizes: Sequence[int]) -> int:
    """Weights between hidden layers: what a policy's size is guessed from before the task's is known."""
    return sum(inputs * outputs for inputs, outputs in itertools.pairwise(hidden_sizes))


def _env_ranks(cfg: Configuration, nodes: Sequence[NodeInfo], inference: str) -> int:
    """Env workers: as many as there are CPUs and the simulators can be divided among, alike on every node."""
    simulators, cpus = cfg.env.total_num_envs, min(node.num_cpus for node in nodes)
    least = MIN_SIMULATORS if inference == "with_env" else 1
    counts = (each * len(nodes) for each in range(cpus, 0, -1))
    fitting = (count for count in counts if simulators % count == 0 and simulators // count >= least)
    return next(fitting, len(nodes))


def _per_node(nodes: Sequence[NodeInfo], ranks: int) -> dict[str, Any]:
    return {"node_group": "node", "placement": f"0-{len(nodes) - 1}:0-{ranks - 1}"}
