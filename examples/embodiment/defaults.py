"""Defaults for this machine: placement, stages and threads, from CPUs, accelerators and the size of the policy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from common.schema import placed_components
from configuration import Configuration

from rlinf_async.address import NodeInfo

SMALL_POLICY = 200_000
"""Largest number of weights between hidden layers for which a message costs more than a forward pass, and threads cost
more than they save."""

MIN_SIMULATORS = 4
"""Simulators per env worker with inference; with fewer, the forward pass costs more than their steps."""


def fill_in(cfg: Configuration, nodes: Sequence[NodeInfo]) -> Configuration:
    """Return ``cfg`` with a value for every open choice.

    A small policy runs in the env workers, one CPU each, and trains on one actor rank with one thread: averaging so few
    gradients would take longer than computing them. A large policy gets a rollout group and an actor rank on every
    accelerator; without accelerators, one actor uses all of a node's CPUs as threads.

    Args:
        nodes: nodes of the cluster.
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
    """Return the number of weights between hidden layers, which estimates a policy's size before the task is known."""
    return sum(inputs * outputs for inputs, outputs in itertools.pairwise(hidden_sizes))


def _env_ranks(cfg: Configuration, nodes: Sequence[NodeInfo], inference: str) -> int:
    """Return the number of env workers: up to one per CPU, dividing the simulators evenly, and equal on every node."""
    simulators, cpus = cfg.env.total_num_envs, min(node.num_cpus for node in nodes)
    least = MIN_SIMULATORS if inference == "with_env" else 1
    counts = (each * len(nodes) for each in range(cpus, 0, -1))
    fitting = (count for count in counts if simulators % count == 0 and simulators // count >= least)
    return next(fitting, len(nodes))


def _per_node(nodes: Sequence[NodeInfo], ranks: int) -> dict[str, Any]:
    return {"node_group": "node", "placement": f"0-{len(nodes) - 1}:0-{ranks - 1}"}
