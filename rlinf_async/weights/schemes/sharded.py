"""Sharded weights (FSDP, DTensor) in the schemes: every rank of the trainer sends its own, and rank 0 to the workers.

Whoever publishes gathers bucket by bucket into the memory that is published.  For the other schemes rank 0 gathers a
whole copy, in the CPU's memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from rlinf_async.weights.model.gather import gather_buckets, gathers_here, is_sharded
from rlinf_async.weights.model.gather_calls import Call
from rlinf_async.weights.model.param_tree import ParamTree, Path, is_tensordict
from rlinf_async.weights.schemes.updates import Update, chosen
from rlinf_async.weights.waiting.aside import Aside


def are_sharded(weights: Any) -> bool:
    """Whether this rank has only a part of them; without a process group nobody has."""
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
    """Whether another rank sends them to the workers, and this one only has a part of them."""
    return are_sharded(weights) and not gathers_here()


class Gathering:
    """Makes them whole.  Its thread is there once there was something to gather.

    Args:
        model_id: as errors call it.
    """

    def __init__(self, model_id: str) -> None:
        self._aside = Aside(f"gathering of {model_id}")

    async def whole(self, update: Update) -> Update:
        """The same with whole weights, of which the ranks that only help get none.

        Collective; a rank that does not take part keeps the others waiting for as long as torch's process group lets
        them.

        Raises:
            TransferFailed: another rank is not in this call.
        """
        weights = await self._aside.do(_gather, chosen(update), update.call, nbytes=None)
        return dataclasses.replace(update, weights=weights, keys=None)

    async def close(self) -> None:
        await self._aside.end()


def _gather(weights: Any, call: Call | None) -> Any:
    tree = ParamTree.of(weights)
    found: dict[Path, torch.Tensor] = {}
    with torch.no_grad():
        for bucket in gather_buckets(tree, call=call):
            found.update((path, tensor.cpu() if is_sharded(tree[path]) else tensor) for path, tensor in bucket.items())
    if not gathers_here():
        return None
    whole = ParamTree(found, tree.aliases, tree.extra)
    return whole.to_tensordict() if is_tensordict(weights) else whole.to_state_dict()
