"""Copying many tensors: large ones by the C library, small ones by one call of torch's for all, or by two at once."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import torch

from rlinf_async.weights.model.moves import Moves, moves_among, share, wrote

_NBYTES: Final = operator.attrgetter("nbytes")

_UNDIVIDED: Final = 32768
"""Elements up to which torch copies a tensor by one thread; it divides a larger one among those that it has."""

STEP: Final = 16 << 20
"""Bytes between two words of how far it is."""

_LITTLE: Final = 1 << 20
"""Bytes up to which it takes longer to find out what is best."""

_WORTH: Final = 32 << 20
"""Bytes for which more than one thread pays."""

_MOST_THREADS: Final = 16
"""Memory feeds no more."""


INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""What elements of so many bytes are moved as, bit for bit."""

Copy: TypeAlias = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]
"""What copies each of the second to its place in the first, as ``copy_tensors``."""


def copy_tensors(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copies each source to its target, whose dtype and device it takes on; done when it returns.

    By two threads or more where there is much of it, even if torch has only one: all others wait for the weights, and
    who has a processor for itself is done in two thirds of the time.

    Raises:
        Exception: torch cannot copy one of them; some have been copied then.
    """
    nbytes = sum(map(_NBYTES, targets))
    if nbytes < _LITTLE:
        _copy(targets, sources)
        return
    large = [index for index, count in enumerate(map(torch.Tensor.numel, targets)) if count > _UNDIVIDED]
    if not large:
        _copy_by_two(targets, sources, nbytes)
        return
    moved = moves_among(targets, sources, large)
    _move(*_some(targets, sources, moved))
    divided = _without(large, moved) if torch.get_num_threads() > 1 else []
    undivided = _some(targets, sources, _without(range(len(targets)), [*moved, *divided]))
    _copy_by_two(*undivided, sum(map(_NBYTES, undivided[0])))
    _copy(*_some(targets, sources, divided))


def _move(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Torch's threads wait for each other after every tensor, long for one that others keep from running; these not."""
    moves = Moves.of(targets, sources)
    try:
        moves.move(_threads(moves.nbytes))
    finally:
        wrote(targets)


def _copy_by_two(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], nbytes: int) -> None:
    """What torch copies by one thread."""
    threads = min(2, _threads(nbytes))
    part = -(-len(targets) // threads)
    starts = range(0, len(targets), part or 1)
    share(threads, [functools.partial(_copy, targets[at : at + part], sources[at : at + part]) for at in starts])


def _threads(nbytes: int) -> int:
    """That share so many bytes."""
    there = min(len(os.sched_getaffinity(0)), max(2, torch.get_num_threads()), _MOST_THREADS)
    return there if nbytes >= _WORTH else 1


def _can_be_cut(target: torch.Tensor, source: torch.Tensor) -> bool:
    return target.is_contiguous() and source.is_contiguous() and target.shape == source.shape


def copy_in_order(
    targets: Sequence[torch.Tensor],
    sources: Sequence[torch.Tensor],
    ends: Sequence[int],
    copied: Callable[[int], None],
    step: int = STEP,
    copy: Copy = copy_tensors,
) -> None:
    """The same from the first to the last, saying how far it is.

    Args:
        ends: of the targets, in bytes from where the first of them begins, ascending.
        copied: called now and then with the bytes up to which all are there.
        step: bytes after which it is called; a larger tensor is copied in parts where that is possible.
        copy: what copies them, some at a time.
    """
    first, before = 0, 0
    for index, (target, source, end) in enumerate(zip(targets, sources, ends, strict=True)):
        if target.nbytes > step and _can_be_cut(target, source):
            copy(targets[first:index], sources[first:index])
            flat, values, part = target.view(-1), source.detach().view(-1), max(1, step // target.itemsize)
            for start in range(0, len(flat), part):
                stop = min(start + part, len(flat))
                copy([flat[start:stop]], [values[start:stop]])
                copied(end - (len(flat) - stop) * target.itemsize)
        elif end - before >= step:
            copy(targets[first : index + 1], sources[first : index + 1])
            copied(end)
        else:
            continue
        first, before = index + 1, end
    copy(targets[first:], sources[first:])


def as_integers(
    targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The same memory, seen as integers where both of a pair have one dtype and are on a GPU: for a copy bit by bit.

    There torch copies many tensors by way of the dtype that it computes in, which makes every NaN the same one, and
    does not know some of the dtypes that it only stores.
    """
    pairs = [
        (target.view(INTEGERS[target.itemsize]), source.view(INTEGERS[source.itemsize]))
        if _can_be_integers(target, source)
        else (target, source)
        for target, source in zip(targets, sources, strict=True)
    ]
    return [target for target, _ in pairs], [source for _, source in pairs]


def _can_be_integers(target: torch.Tensor, source: torch.Tensor) -> bool:
    if not (target.is_cuda and source.is_cuda and target.dtype == source.dtype and target.itemsize in INTEGERS):
        return False
    return not (target.is_complex() or target.is_neg() or source.is_neg())


def _some(
    targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], which: Sequence[int]
) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
    if len(which) == len(targets):
        return targets, sources
    return [targets[index] for index in which], [sources[index] for index in which]


def _without(all_of_them: Sequence[int], those: Sequence[int]) -> Sequence[int]:
    gone = set(those)
    return [index for index in all_of_them if index not in gone] if gone else all_of_them


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """One call for all of them: ten thousand small ones cost little more than a large one."""
    if targets:
        with torch.no_grad():  # each thread says so for itself
            torch._foreach_copy_(list(targets), list(sources))
