"""Placement of the groups: as configured, or with fewer accelerators than two one worker of each on what there is."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from reasoning_config import Configuration

from rlinf_async import HybridComponentPlacement, ModelParallelComponentPlacement
from rlinf_async.errors import ConfigError


def declared_gpus(cfg: Configuration) -> int | None:
    """Return ``cluster.fake_gpus``, unless this machine has a GPU of its own."""
    return None if torch.cuda.is_available() else cfg.cluster.fake_gpus


def place(cfg: Configuration, cluster: Any) -> HybridComponentPlacement | ModelParallelComponentPlacement:
    """Return the placement of ``actor``, ``rollout`` and ``reward``.

    One accelerator is shared by all of them, whatever ``cluster.component_placement`` says, and without any they are on
    the CPUs of node 0: at the same time with ``rollout.max_staleness``, else in turn.
    """
    accelerators = sum(node.num_accelerators for node in cluster.nodes)
    if accelerators < 2:
        where = 0 if accelerators else {"node_group": "node", "placement": "0:0"}
        section = dataclasses.replace(cfg.cluster, component_placement={"actor,rollout,reward": where})
        return HybridComponentPlacement(dataclasses.replace(cfg, cluster=section), cluster)
    placement = ModelParallelComponentPlacement(cfg, cluster)
    if placement.is_collocated and cfg.rollout.max_staleness:
        raise ConfigError(
            "rollout.max_staleness must be 0 where actor and rollout share their accelerators, which they use in "
            "turn: place them apart, or set it to 0"
        )
    return placement
