"""Buckets of tensors, with RLinf's keys; and the mark by which these syncers know a message of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from rlinf_async.weights.model.gather import gather_buckets
from rlinf_async.weights.model.gather_calls import Call, Calls
from rlinf_async.weights.model.param_tree import ParamTree, Path
from rlinf_async.rlinf.options import device_of

TOTAL_BUCKETS: Final = "total_buckets"
SYNCER_VERSION: Final = "syncer_version"
LARGEST: Final = (1 << 31) - 1
"""Of the numbers of versions, which travel as int32."""

_calls: Final = Calls()
"""Of whoever counts none of its own."""


class Marked(dict[str, Any]):
    """A message with RLinf's keys and no others, whose mark only these syncers look at.

    A callback that makes another dict of it has one of RLinf's messages; so the mark is never necessary.

    Attributes:
        mark: of a bucket, its sending and its number in it, counted from 0; of the weights that a receiver has, their
            checksums.
    """

    def __init__(self, content: Mapping[str, Any], mark: Any) -> None:
        super().__init__(content)
        self.mark = mark


def iter_named_tensor_buckets(
    items: Iterable[tuple[str, torch.Tensor]],
    version: int | torch.Tensor,
    *,
    bucket_size: int,
    bucket_device: str | torch.device,
    dtype_resolver: Callable[[str, torch.dtype], torch.dtype] | None = None,
) -> Iterator[dict[str, torch.Tensor]]:
    """Copies of tensors by name, in buckets that are made when they are asked for.

    Args:
        items: names and tensors; of DTensors rank 0 gets whole ones, and the other ranks have to iterate as well.
        version: goes into the first bucket as ``syncer_version``, beside ``total_buckets``; both int32.
        bucket_size: bytes, after the cast, after which a bucket ends.  Tensors are not divided.
        bucket_device: where the copies are.
        dtype_resolver: what a tensor is cast to, by name and dtype.

    Raises:
        ValueError: a tensor has the name of one of these two, or there is no tensor.
        TransferFailed: another rank is not in this call.
    """
    yield from buckets_in_call(_calls.next(), items, version, bucket_size, bucket_device, dtype_resolver)


def buckets_in_call(
    call: Call,
    items: Iterable[tuple[str, torch.Tensor]],
    version: int | torch.Tensor,
    bucket_size: int,
    bucket_device: str | torch.device,
    dtype_resolver: Callable[[str, torch.dtype], torch.dtype] | None,
) -> Iterator[dict[str, torch.Tensor]]:
    """The same, in a call of a syncer's by which the ranks know that they are in the same one."""
    plan: list[list[tuple[str, torch.Tensor, torch.dtype]]] = []
    filled, device = bucket_size, device_of(bucket_device)
    for name, tensor in items:
        if name in (TOTAL_BUCKETS, SYNCER_VERSION):
            raise ValueError(f"the tensor {name!r} conflicts with metadata key {name!r}: give it another name")
        dtype = tensor.dtype if dtype_resolver is None else dtype_resolver(name, tensor.dtype)
        if filled >= bucket_size:
            plan.append([])
            filled = 0
        plan[-1].append((name, tensor, dtype))
        filled += tensor.numel() * dtype.itemsize
    if not plan:
        raise ValueError("No parameters to sync: none of the names that should be synchronised is in the weights")
    numbers = {TOTAL_BUCKETS: len(plan), SYNCER_VERSION: version}
    head = {key: torch.as_tensor(number, dtype=torch.int32, device=device) for key, number in numbers.items()}
    for part in plan:
        bucket, head = head, {}
        tensors: dict[Path, torch.Tensor] = {(name,): tensor for name, tensor, _ in part}
        dtypes: dict[Path, torch.dtype] = {(name,): dtype for name, _, dtype in part}
        for whole in gather_buckets(ParamTree(tensors), call=call):
            for path, tensor in whole.items():
                bucket[path[0]] = tensor.to(device, dtypes[path], copy=True)
        yield bucket
