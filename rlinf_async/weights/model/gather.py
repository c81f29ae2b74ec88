"""Whole tensors out of sharded ones (FSDP, DTensor), on one rank, bucket by bucket.

Every rank puts its shards of a bucket into one message to the rank that gathers.  No other rank ever has a whole
tensor, and that one those of a bucket at a time.

Every message says which call of which sender it is of.  Whoever gathers puts together shards of one call only: those of
calls that it was refused, or has failed in, are thrown away when the next call comes, and until then their ranks wait;
a rank that is further on than the others is ``TransferFailed``, and the next call is as good as new.  That holds for
ranks that make the same calls, whatever becomes of each.  A rank that does not make a call at all keeps the others
waiting for as long as torch's process group lets them, and what it calls next is taken for that call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.distributed as dist

from rlinf_async.weights.model.gather_calls import Call, Calls, Header, announce, await_headers, received
from rlinf_async.weights.model.param_tree import ParamTree, Path

BUCKET: Final = 64 << 20

_calls: Final = Calls()
"""Of whoever counts none of its own."""


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def gathers_here(dst: int = 0) -> bool:
    """Whether this rank is the one that gets whole tensors."""
    return not dist.is_initialized() or dist.get_rank() == dst


def gather_buckets(
    tree: ParamTree,
    dst: int = 0,
    bucket_size: int = BUCKET,
    group: dist.ProcessGroup | None = None,
    call: Call | None = None,
) -> Iterator[dict[Path, torch.Tensor]]:
    """The tensors of a tree in its order, whole.  Collective: every rank iterates to the end.

    Args:
        tree: on every rank the same paths; DTensors, which may have different meshes, or plain tensors.
        dst: the global rank that gets them.
        bucket_size: bytes after which a bucket ends; tensors are not divided.
        group: the ranks that take part, and what they send through; by default all, through the default group.
        call: that gathers; one may gather several trees, on every rank the same.

    Yields:
        ``{path: tensor}``: whole ones of DTensors on ``dst`` only, new; plain ones on every rank, the tree's own.

    Raises:
        TransferFailed: on ``dst``: another rank is not in this call, or has other weights.
    """
    call = _calls.next() if call is None else call
    for bucket in _buckets(tree.tensors, bucket_size):
        yield _gather(bucket, dst, group, {}, call)


def gather_into(
    views: Mapping[Path, torch.Tensor],
    tree: ParamTree,
    dst: int = 0,
    bucket_size: int = BUCKET,
    group: dist.ProcessGroup | None = None,
    call: Call | None = None,
) -> None:
    """Packs the tensors of a tree, whole, on one rank: shards go straight to their places where no dtype is cast.

    Collective, as ``gather_buckets``, and raises the same.

    Args:
        views: on ``dst`` where each goes, cast to its dtype (``Manifest.views``); elsewhere empty.
    """
    call = _calls.next() if call is None else call
    for bucket in _buckets(tree.tensors, bucket_size):
        whole = _gather(bucket, dst, group, views, call)
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
    bucket: Mapping[Path, Any],
    dst: int,
    group: dist.ProcessGroup | None,
    places: Mapping[Path, torch.Tensor],
    call: Call,
) -> dict[Path, torch.Tensor]:
    """One bucket; what fits into its place is there at once."""
    whole: dict[Path, torch.Tensor] = {}
    by_rank: dict[int, list[_Shard]] = {}
    together: list[Path] = []
    me = dist.get_rank() if dist.is_initialized() else dst
    for path, tensor in bucket.items():
        if not is_sharded(tensor):
            whole[path] = tensor.detach()
        elif (found := _shards(path, tensor, dst)) is None:
            together.append(path)
        else:
            for shard in found:
                by_rank.setdefault(shard.rank, []).append(shard)
            if me == dst:
                device, place = tensor.to_local().device, places.get(path)
                if place is None or (place.dtype, place.device) != (tensor.dtype, device):
                    place = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
                whole[path] = place
    if not by_rank and not together:
        return whole
    headers = _headers(bucket, by_rank, together, dst, call)
    if me == dst:
        await_headers(headers, group)
    elif me in headers and not announce(headers[me][0], dst, group, headers[me][1]):
        return whole  # the call is over there
    for path in together:
        full = bucket[path].detach().full_tensor()
        if me == dst:
            whole[path] = full
    if me != dst:
        if me in by_rank:
            dist.send(torch.cat([_local(bucket[shard.path]) for shard in by_rank[me]]), dst, group)
        return whole
    arriving: list[tuple[int, torch.Tensor, Any]] = []
    for rank, theirs in by_rank.items():
        if rank == me:
            arriving.append((rank, torch.cat([_local(bucket[shard.path]) for shard in theirs]), None))
            continue
        flat = torch.empty(_nbytes(theirs, bucket), dtype=torch.uint8, device=whole[theirs[0].path].device)
        arriving.append((rank, flat, dist.irecv(flat, rank, group)))
    for rank, flat, work in arriving:
        if work is not None:
            work.wait()
            received(rank, group, flat.device)
        _put(by_rank[rank], flat, whole)
    return whole


def _headers(
    bucket: Mapping[Path, Any], by_rank: Mapping[int, list[_Shard]], together: Iterable[Path], dst: int, call: Call
) -> dict[int, tuple[Header, torch.device]]:
    """What each rank announces to the one that gathers, and where from."""
    devices = {rank: bucket[shards[0].path].to_local().device for rank, shards in by_rank.items()}
    for path in together:
        for rank in bucket[path].device_mesh.mesh.view(-1).tolist():
            devices.setdefault(rank, bucket[path].to_local().device)
    awaits = bool(together)
    plain = call.header(0, awaits=awaits)
    return {
        rank: (replace(plain, nbytes=_nbytes(by_rank.get(rank, ()), bucket)), device)
        for rank, device in sorted(devices.items())
        if rank != dst
    }


def _nbytes(shards: Iterable[_Shard], bucket: Mapping[Path, Any]) -> int:
    return sum(_numel(shard.shape) * bucket[shard.path].element_size() for shard in shards)


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
