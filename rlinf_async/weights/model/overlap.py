"""Functions that find tensors that overlap: groups with intersecting address ranges, and pairs that share elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from rlinf_async.weights.model.param_tree import local_part


def meeting_in_memory(tensors: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Yield groups of tensors, as indices, whose address ranges intersect.

    Interleaved columns of a matrix intersect without sharing an element.
    """
    local = list(map(local_part, tensors))
    starts = list(map(torch.Tensor.data_ptr, local))
    order = sorted(range(len(local)), key=starts.__getitem__)
    reaches = list(accumulate((starts[number] + _stretch(local[number]) for number in order), max))
    if any(map(operator.lt, map(starts.__getitem__, order[1:]), reaches)):
        group = order[:1]
        for number, reach in zip(order[1:], reaches, strict=False):
            if starts[number] >= reach:
                if len(group) > 1:
                    yield group
                group = []
            group.append(number)
        if len(group) > 1:
            yield group


def overlaps(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor] = ()) -> Iterator[tuple[int, int]]:
    """Yield pairs that share elements, as indices; one pair for each intersecting group.

    Args:
        others: further tensors, indexed after ``tensors``; they may share elements with each other.
    """
    everything = (*tensors, *others)
    for met in map(sorted, meeting_in_memory(everything)):
        count = sum(number < len(tensors) for number in met)
        pair = _first_overlap([local_part(everything[number]) for number in met], count)
        if pair is not None:
            yield met[pair[0]], met[pair[1]]


def _first_overlap(tensors: Sequence[torch.Tensor], count: int) -> tuple[int, int] | None:
    unit, low = math.gcd(*(tensor.itemsize for tensor in tensors)), min(tensor.data_ptr() for tensor in tensors)
    high = max(tensor.data_ptr() + _stretch(tensor) for tensor in tensors)
    marks = torch.zeros((high - low) // unit, dtype=torch.int32)  # for each unit, its owner's index plus one
    for number, tensor in enumerate(tensors):
        if tensor.numel():
            units = tensor.itemsize // unit
            shape = [1 if step == 0 else size for size, step in zip(tensor.shape, tensor.stride(), strict=True)]
            steps = [step * units for step in tensor.stride()]
            own = marks.as_strided((*shape, units), (*steps, 1), (tensor.data_ptr() - low) // unit)
            if first := int(own.max()):
                return first - 1, number
            if number < count:
                own.fill_(number + 1)
    return None


def _stretch(tensor: torch.Tensor) -> int:
    if tensor.is_contiguous() or not tensor.numel():
        return tensor.nbytes
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.itemsize * (1 + sum((size - 1) * step for size, step in steps))
