"""Sharded weights (FSDP, DTensor) in schemes: each trainer rank sends its shards, and rank 0 sends to the workers.

A publisher gathers bucket by bucket into the published memory. For schemes that do not publish, rank 0 gathers a whole
copy in CPU memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from rlinf_async.weights.model.gather import gather_buckets, gathers_here
from rlinf_async.weights.model.gather_calls import GatherCall
from rlinf_async.weights.model.param_tree import ParamTree, Path, is_tensordict
from rlinf_async.weights.model.shards import is_sharded


def are_sharded(weights: Any) -> bool:
    """True if this rank has only part of the weights; never without a process group."""
    return dist.is_available() and dist.is_initialized() and _has_shards(weights)


def _has_shards(weights: Any) -> bool:
    if isinstance(weights, torch.Tensor):
        return is_sharded(weights)
    if isinstance(weights, ParamTree):
        weights = weights.tensors
    elif not isinstance(weights, Mapping) and not is_tensordict(weights):
        return False
    return any(map(_has_shards, weights.values()))


def only_helps(weights: Any) -> bool:
    """True if this rank has only part of the weights, which another rank sends to the workers."""
    return are_sharded(weights) and not gathers_here()


def gather_whole(weights: Any, call: GatherCall | None) -> Any:
    """Return whole weights in CPU memory; None on ranks that only take part.

    Collective. A rank that does not take part keeps the others waiting until torch's process group times out.

    Raises:
        TransferFailed: another rank is not making this call.
    """
    assert call is not None
    tree = ParamTree.of(weights)
    found: dict[Path, torch.Tensor] = {}
    with torch.no_grad():
        for bucket in gather_buckets(tree, call):
            found.update((path, tensor.cpu() if is_sharded(tree[path]) else tensor) for path, tensor in bucket.items())
    if not gathers_here():
        return None
    whole = ParamTree(found, tree.aliases, tree.extra)
    return whole.to_tensordict() if is_tensordict(weights) else whole.to_state_dict()
