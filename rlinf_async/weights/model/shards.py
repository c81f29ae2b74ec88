"""Functions that compute, from device mesh and placements, the part of a whole tensor that one rank holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from rlinf_async.errors import WeightMismatch

Spec: TypeAlias = tuple[Any, Sequence[Any]]
"""A DeviceMesh, and a placement for each mesh dimension."""

ShardOption: TypeAlias = Spec | Callable[[str, torch.Tensor], Spec | None] | None


class Slice(NamedTuple):
    """A contiguous part of a tensor along one dimension of ``size`` elements."""

    dimension: int
    begin: int
    length: int
    size: int


def is_sharded(tensor: torch.Tensor) -> bool:
    """True for a DTensor."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def cut(begin: list[int], shape: list[int], placement: Any, index: int, count: int) -> None:
    """Narrow a rectangle to the chunk at one index of a mesh dimension, with chunks as in ``torch.chunk``."""
    dim = placement.dim
    chunk = -(-shape[dim] // count)
    start = min(index * chunk, shape[dim])
    begin[dim], shape[dim] = begin[dim] + start, min(chunk, shape[dim] - start)


def slices_of(whole: Sequence[int], spec: Spec) -> tuple[Slice, ...]:
    """Return this rank's slices of a tensor of that shape.

    Raises:
        WeightMismatch: the placements do not describe such slices; the error's text continues the tensor's name.
    """
    mesh, placements = spec
    begin, shape = [0] * len(whole), list(whole)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise WeightMismatch("is on a device mesh that does not have this rank")
    if len(placements) != len(coordinate):
        raise WeightMismatch(f"has {len(placements)} placements for a mesh of {len(coordinate)} dimensions")
    for placement, index, count in zip(placements, coordinate, mesh.shape, strict=True):
        if placement.is_replicate():
            continue
        if type(placement).__name__ != "Shard":
            raise WeightMismatch(f"is placed as {placement}, and only Shard and Replicate name a part of the weights")
        if not -len(shape) <= placement.dim < len(shape):
            raise WeightMismatch(f"is placed as {placement}, and has {len(shape)} dimensions in the weights")
        cut(begin, shape, placement, index, count)
    facts = enumerate(zip(begin, shape, whole, strict=True))
    return tuple(Slice(dim, first, length, size) for dim, (first, length, size) in facts if length != size)
