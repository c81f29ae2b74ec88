"""Whole tensors out of sharded ones (FSDP, DTensor), on one rank, bucket by bucket.

Every rank puts its shards of a bucket into one message to the rank that gathers.  No other rank ever has a whole
tensor, and that one those of a bucket at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from rlinf_async.weights.model.param_tree import ParamTree, Path

BUCKET: Final = 64 << 20


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def gathers_here(dst: int = 0) -> bool:
    """Whether this rank is the one that gets whole tensors."""
    return not dist.is_initialized() or dist.get_rank() == dst


def gather_buckets(
    tree: ParamTree, dst: int = 0, bucket_size: int = BUCKET, group: dist.ProcessGroup | None = None
) -> Iterator[dict[Path, torch.Tensor]]:
    """The tensors of a tree in its order, whole.  Collective: every rank iterates to the end.

    Args:
        tree: on every rank the same paths; DTensors, which may have different meshes, or plain tensors.
        dst: the global rank that gets them.
        bucket_size: bytes after which a bucket ends; tensors are not divided.
        group: the ranks that take part, and what they send through; by default all, through the default group.

    Yields:
        ``{path: tensor}``: whole ones of DTensors on ``dst`` only, new; plain ones on every rank, the tree's own.
    """
    for bucket in _buckets(tree.tensors, bucket_size):
        yield _gather(bucket, dst, group, {})


def gather_into(
    views: Mapping[Path, torch.Tensor],
    tree: ParamTree,
    dst: int = 0,
    bucket_size: int = BUCKET,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Packs the tensors of a tree, whole, on one rank: shards go straight to their places where no dtype is cast.

    Collective, as ``gather_buckets``.

    Args:
        views: on ``dst`` where each goes, cast to its dtype (``Manifest.views``); elsewhere empty.
    """
    for bucket in _buckets(tree.tensors, bucket_size):
        whole = _gather(bucket, dst, group, views)
        for path in whole.keys() & views.keys():
            if whole[path] is not views[path]:
                views[path].copy_(whole[path])


def _buckets(tensors: Mapping[Path, torch.Tensor], size: int) -> Iterator[dict[Path, torch.Tensor]]:
    bucket: dict[Path, torch.Tensor] = {}
    filled = 0
    for path, tensor in tensors.items():
        bucket[path] = tensor
        filled += tensor.numel() * tensor.element_size()
        if filled >= size:
            yield bucket
            bucket, filled = {}, 0
    if bucket:
        yield bucket


@dataclass(frozen=True)
class _Shard:
    """A rectangular part of a tensor that one rank sends."""

    path: Path
    rank: int
    begin: tuple[int, ...]
    shape: tuple[int, ...]

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        for dim, (begin, length) in enumerate(zip(self.begin, self.shape, strict=True)):
            whole = whole.narrow(dim, begin, length)
        return whole


def _gather(
    bucket: Mapping[Path, Any], dst: int, group: dist.ProcessGroup | None, places: Mapping[Path, torch.Tensor]
) -> dict[Path, torch.Tensor]:
    """One bucket; what fits into its place is there at once."""
    whole: dict[Path, torch.Tensor] = {}
    shards: list[_Shard] = []
    me = dist.get_rank() if dist.is_initialized() else dst
    for path, tensor in bucket.items():
        if not is_sharded(tensor):
            whole[path] = tensor.detach()
        elif (found := _shards(path, tensor, dst)) is None:
            full = tensor.detach().full_tensor()
            if me == dst:
                whole[path] = full
        else:
            shards += found
            if me == dst:
                device, place = tensor.to_local().device, places.get(path)
                if place is None or (place.dtype, place.device) != (tensor.dtype, device):
                    place = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
                whole[path] = place
    if me != dst:
        if mine := [_local(bucket[shard.path]) for shard in shards if shard.rank == me]:
            dist.send(torch.cat(mine), dst, group)
        return whole
    by_rank: dict[int, list[_Shard]] = {}
    for shard in shards:
        by_rank.setdefault(shard.rank, []).append(shard)
    arriving: list[tuple[list[_Shard], torch.Tensor, Any]] = []
    for rank, theirs in by_rank.items():
        if rank == me:
            flat = torch.cat([_local(bucket[shard.path]) for shard in theirs])
            arriving.append((theirs, flat, None))
            continue
        nbytes = sum(_numel(shard.shape) * bucket[shard.path].element_size() for shard in theirs)
        flat = torch.empty(nbytes, dtype=torch.uint8, device=whole[theirs[0].path].device)
        arriving.append((theirs, flat, dist.irecv(flat, rank, group)))
    for theirs, flat, work in arriving:
        if work is not None:
            work.wait()
        _put(theirs, flat, whole)
    return whole


def _put(shards: Iterable[_Shard], flat: torch.Tensor, whole: Mapping[Path, torch.Tensor]) -> None:
    begin = 0
    for shard in shards:
        target = shard.of(whole[shard.path])
        end = begin + _numel(shard.shape) * target.element_size()
        # A copy, because a part of the message need not begin at a multiple of the element's size.
        target.copy_(flat[begin:end].clone().view(target.dtype).view(shard.shape))
        begin = end


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local().detach()
    return local.contiguous().view(-1).view(torch.uint8)


def _numel(shape: Iterable[int]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product


def _shards(path: Path, tensor: Any, dst: int) -> list[_Shard] | None:
    """Who sends which part; of replicas one sends, the receiver itself if it has one.  None: too involved for this."""
    mesh, placements = tensor.device_mesh, tensor.placements
    if any(type(placement).__name__ not in ("Shard", "Replicate") for placement in placements):
        return None  # partial sums, and the strided shards of tensor parallelism under FSDP
    at_dst = _coordinate(mesh.mesh, dst)
    if at_dst is None:
        at_dst = [0] * len(placements)
    found = []
    for position in torch.cartesian_prod(*(torch.arange(size) for size in mesh.mesh.shape)).view(-1, len(placements)):
        where = position.tolist()
        begin, shape = [0] * tensor.dim(), list(tensor.shape)
        for placement, index, chosen, count in zip(placements, where, at_dst, mesh.mesh.shape, strict=True):
            if placement.is_replicate():
                if index != chosen:
                    break
                continue
            dim = placement.dim
            chunk = -(-shape[dim] // count)
            start = min(index * chunk, shape[dim])
            begin[dim], shape[dim] = begin[dim] + start, min(chunk, shape[dim] - start)
        else:
            if _numel(shape):
                found.append(_Shard(path, int(mesh.mesh[tuple(where)]), tuple(begin), tuple(shape)))
    return found


def _coordinate(mesh: torch.Tensor, rank: int) -> list[int] | None:
    places = (mesh == rank).nonzero()
    return places[0].tolist() if len(places) else None
