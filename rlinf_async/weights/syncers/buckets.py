"""Tensors in buckets, as a bucket syncer sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import torch

from rlinf_async.weights.model.gather import gather_buckets
from rlinf_async.weights.model.gather_calls import Call, Calls
from rlinf_async.weights.model.param_tree import ParamTree, Path
from rlinf_async.weights.syncers.options import device_of
from rlinf_async.weights.syncers.sending import Sending

TOTAL_BUCKETS: Final = "total_buckets"
SYNCER_VERSION: Final = "syncer_version"
BUCKET_NUMBER: Final = "bucket_number"
SYNCER_SENDING: Final = "syncer_sending"
LARGEST: Final = (1 << 31) - 1
"""Of the numbers of versions, which travel as int32."""

_calls: Final = Calls()
"""Of whoever counts none of its own."""

_METADATA: Final = (TOTAL_BUCKETS, SYNCER_VERSION, BUCKET_NUMBER, SYNCER_SENDING)


def iter_named_tensor_buckets(
    items: Iterable[tuple[str, torch.Tensor]],
    version: int,
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
        dtype_resolver: what a floating-point tensor is cast to, by name and dtype.

    Raises:
        ValueError: a tensor has the name of one of these two, or of ``bucket_number`` or ``syncer_sending``, which
            syncers add.
        TransferFailed: another rank is not in this call.
    """
    yield from buckets_in_call(_calls.next(), items, version, bucket_size, bucket_device, dtype_resolver)


def buckets_in_call(
    call: Call,
    items: Iterable[tuple[str, torch.Tensor]],
    version: int,
    bucket_size: int,
    bucket_device: str | torch.device,
    dtype_resolver: Callable[[str, torch.dtype], torch.dtype] | None,
) -> Iterator[dict[str, torch.Tensor]]:
    """The same, in a call of a syncer's by which the ranks know that they are in the same one."""
    plan: list[list[tuple[str, torch.Tensor, torch.dtype]]] = [[]]
    filled = 0
    for name, tensor in items:
        check_name(name)
        casts = dtype_resolver is not None and tensor.is_floating_point()
        dtype = dtype_resolver(name, tensor.dtype) if casts and dtype_resolver is not None else tensor.dtype
        if filled >= bucket_size:
            plan.append([])
            filled = 0
        plan[-1].append((name, tensor, dtype))
        filled += tensor.numel() * dtype.itemsize
    for number, part in enumerate(plan):
        bucket: dict[str, torch.Tensor] = {}
        if number == 0:
            bucket[TOTAL_BUCKETS] = torch.tensor(len(plan), dtype=torch.int32)
            bucket[SYNCER_VERSION] = torch.tensor(version, dtype=torch.int32)
        tensors: dict[Path, torch.Tensor] = {(name,): tensor for name, tensor, _ in part}
        dtypes: dict[Path, torch.dtype] = {(name,): dtype for name, _, dtype in part}
        for whole in gather_buckets(ParamTree(tensors), call=call):
            for path, tensor in whole.items():
                bucket[path[0]] = tensor.to(device_of(bucket_device), dtypes[path], copy=True)
        yield bucket


def numbered(buckets: Iterable[dict[str, torch.Tensor]], sending: Sending) -> Iterator[dict[str, torch.Tensor]]:
    """The same; each says too of which sending it is, as ``syncer_sending``: sender and number, int64.

    Those after the first also say which version they are of, and which of its buckets, counted from 0.
    """
    for number, bucket in enumerate(buckets):
        mark = {SYNCER_VERSION: sending.version, BUCKET_NUMBER: number} if number else {}
        marked = {name: torch.tensor(value, dtype=torch.int32) for name, value in mark.items()}
        yield {SYNCER_SENDING: torch.tensor([sending.sender, sending.number], dtype=torch.int64)} | marked | bucket


def check_name(name: str) -> None:
    """
    Raises:
        ValueError: it is what a bucket calls something else.
    """
    if name in _METADATA:
        raise ValueError(f"the tensor {name!r} conflicts with metadata key {name!r}: give it another name")
