"""Functions that combine shards (FSDP, DTensor) into whole tensors on one rank, bucket by bucket.

Every rank sends its shards of a bucket in one message to the gathering rank. No other rank ever holds a whole tensor,
and the gathering rank holds only one bucket's tensors at a time.

Every message names its call and sender. The gathering rank combines only shards of the same call. If it refused a call,
or the call failed on it, it discards the call's shards when the next call arrives; until then, the ranks that sent them
wait. A rank that is ahead of the others raises ``TransferFailed``, and the next call works again. All of this requires
that ranks make the same calls, whatever the outcome of each. A rank that omits a call keeps the others waiting until
torch's process group times out, and its next call is mistaken for the missing one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

from rlinf_async.weights.model.gather_calls import GATHERING_RANK, GatherCall, Header, announce, await_headers, received
from rlinf_async.weights.model.param_tree import ParamTree, Path
from rlinf_async.weights.model.shards import cut, is_sharded

BUCKET_BYTES: Final = 64 << 20


def gathers_here() -> bool:
    """True if this rank receives whole tensors."""
    return not dist.is_initialized() or dist.get_rank() == GATHERING_RANK


def gather_buckets(
    tree: ParamTree, call: GatherCall, bucket_size: int = BUCKET_BYTES, views: Mapping[Path, torch.Tensor] | None = None
) -> Iterator[dict[Path, torch.Tensor]]:
    """Yield a tree's tensors in order, whole on rank 0. Collective: every rank must iterate to the end.

    Args:
        tree: the same paths on every rank; DTensors, possibly on different meshes, or plain tensors.
        call: the current call; it may gather several trees, equal on every rank.
        bucket_size: size in bytes at which a bucket is complete; tensors are not split.
        views: destinations for tensors with the same dtype and device.

    Yields:
        ``{path: tensor}``: DTensors as new, whole tensors, on rank 0 only; plain tensors on every rank, uncopied.

    Raises:
        TransferFailed: on rank 0: another rank is not making this call, or has different weights.
    """
    for bucket in _buckets(tree.tensors, bucket_size):
        yield _gather(bucket, views or {}, call)


def gather_into(views: Mapping[Path, torch.Tensor], tree: ParamTree, call: GatherCall) -> None:
    """Pack a tree's whole tensors on rank 0; shards are written directly to their places unless a dtype is cast.

    Collective, with the same errors as ``gather_buckets``.

    Args:
        views: on rank 0, each tensor's place, to whose dtype it is cast (``Manifest.views``); elsewhere empty.
    """
    for whole in gather_buckets(tree, call, views=views):
        for path in whole.keys() & views.keys():
            if whole[path] is not views[path]:
                views[path].copy_(whole[path])


def _buckets(tensors: Mapping[Path, torch.Tensor], size: int) -> Iterator[dict[Path, torch.Tensor]]:
    bucket: dict[Path, torch.Tensor] = {}
    filled = 0
    for path, tensor in tensors.items():
        bucket[path] = tensor
        filled += tensor.nbytes
        if filled >= size:
            yield bucket
            bucket, filled = {}, 0
    if bucket:
        yield bucket


class _Shard(NamedTuple):
    """A rectangular part of a tensor, sent by one rank."""

    path: Path
    rank: int
    begin: tuple[int, ...]
    shape: tuple[int, ...]

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        for dim, (begin, length) in enumerate(zip(self.begin, self.shape, strict=True)):
            whole = whole.narrow(dim, begin, length)
        return whole


def _gather(
    bucket: Mapping[Path, Any], views: Mapping[Path, torch.Tensor], call: GatherCall
) -> dict[Path, torch.Tensor]:
    whole: dict[Path, torch.Tensor] = {}
    by_rank: dict[int, list[_Shard]] = {}
    together: list[Path] = []
    gathers = gathers_here()
    for path, tensor in bucket.items():
        if not is_sharded(tensor):
            whole[path] = tensor.detach()
        elif (found := _shards(path, tensor)) is None:
            together.append(path)
        else:
            for shard in found:
                by_rank.setdefault(shard.rank, []).append(shard)
            if gathers:
                device, place = tensor.to_local().device, views.get(path)
                if place is None or (place.dtype, place.device) != (tensor.dtype, device):
                    place = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
                whole[path] = place
    if not by_rank and not together:
        return whole
    me, headers = dist.get_rank(), _headers(bucket, by_rank, together, call)
    if gathers:
        await_headers(headers)
    elif me in headers and not announce(*headers[me]):
        return whole  # the gathering rank has ended the call
    for path in together:
        full = bucket[path].detach().full_tensor()
        if gathers:
            whole[path] = full
    own = torch.cat([_local(bucket[shard.path]) for shard in by_rank[me]]) if me in by_rank else None
    if not gathers:
        if own is not None:
            dist.send(own, GATHERING_RANK)
        return whole
    arriving: list[tuple[int, torch.Tensor, Any]] = [] if own is None else [(me, own, None)]
    for rank, theirs in by_rank.items():
        if rank != me:
            flat = torch.empty(_nbytes(theirs, bucket), dtype=torch.uint8, device=whole[theirs[0].path].device)
            arriving.append((rank, flat, dist.irecv(flat, rank)))
    for rank, flat, work in arriving:
        if work is not None:
            work.wait()
            received(rank, flat.device)
        _put(by_rank[rank], flat, whole)
    return whole


def _headers(
    bucket: Mapping[Path, Any], by_rank: Mapping[int, list[_Shard]], together: Iterable[Path], call: GatherCall
) -> dict[int, tuple[Header, torch.device]]:
    """Return each rank's announcement to the gathering rank, and the device from which its shards are sent."""
    devices = {rank: bucket[shards[0].path].to_local().device for rank, shards in by_rank.items()}
    for path in together:
        for rank in bucket[path].device_mesh.mesh.view(-1).tolist():
            devices.setdefault(rank, bucket[path].to_local().device)
    plain = call.header(awaits=bool(together))
    return {
        rank: (plain._replace(nbytes=_nbytes(by_rank.get(rank, ()), bucket)), device)
        for rank, device in sorted(devices.items())
        if rank != GATHERING_RANK
    }


def _nbytes(shards: Iterable[_Shard], bucket: Mapping[Path, Any]) -> int:
    return sum(math.prod(shard.shape) * bucket[shard.path].element_size() for shard in shards)


def _put(shards: Iterable[_Shard], flat: torch.Tensor, whole: Mapping[Path, torch.Tensor]) -> None:
    begin = 0
    for shard in shards:
        target = shard.of(whole[shard.path])
        end = begin + target.nbytes
        # Copy first, because a part of the message may begin at any byte, not only at a multiple of the element size.
        target.copy_(flat[begin:end].clone().view(target.dtype).view(shard.shape))
        begin = end


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local().detach()
    return local.contiguous().view(-1).view(torch.uint8)


def _shards(path: Path, tensor: Any) -> list[_Shard] | None:
    """Return the shards and their ranks, or None if unsupported. One replica sends: if possible, the receiver's."""
    mesh, placements = tensor.device_mesh.mesh, tensor.placements
    if any(type(placement).__name__ not in ("Shard", "Replicate") for placement in placements):
        return None  # partial sums, and strided shards of tensor parallelism under FSDP
    receiver = (mesh == GATHERING_RANK).nonzero()
    replica = receiver[0].tolist() if len(receiver) else [0] * len(placements)
    found = []
    for position in torch.cartesian_prod(*map(torch.arange, mesh.shape)).view(-1, len(placements)):
        begin, shape = [0] * tensor.dim(), list(tensor.shape)
        for placement, index, chosen, count in zip(placements, position.tolist(), replica, mesh.shape, strict=True):
            if placement.is_replicate():
                if index != chosen:
                    break
                continue
            cut(begin, shape, placement, index, count)
        else:
            if math.prod(shape):
                found.append(_Shard(path, int(mesh[tuple(position)]), tuple(begin), tuple(shape)))
    return found
