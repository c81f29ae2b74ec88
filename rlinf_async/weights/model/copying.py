"""Functions that copy many tensors: large ones as raw memory in independent threads, small ones in one call."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

import torch
from torch.autograd.graph import increment_version

_MOVE: Final = ctypes.CDLL(None).memmove  # ctypes releases the GIL during the call
_MOVE.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_MOVE.restype = None

DENSE: Final = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not dtype.is_complex and not str(dtype).startswith("torch.q")
)
"""Dtypes whose values are equal if their bytes are, except for lazily negated tensors."""

INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Maps each element size to an integer dtype for bitwise copies."""

_TYPES: Final = frozenset({torch.Tensor, torch.nn.Parameter})
"""Tensor types without state beyond their memory."""

_STRIDED: Final = frozenset({torch.strided})
_IS_CPU: Final = operator.attrgetter("is_cpu")
_IS_NESTED: Final = operator.attrgetter("is_nested")
_LAYOUT: Final = operator.attrgetter("layout")
_DTYPE: Final = operator.attrgetter("dtype")
_SHAPE: Final = operator.attrgetter("shape")
_NBYTES: Final = operator.attrgetter("nbytes")

_MAX_UNDIVIDED: Final = 32768
"""Number of elements up to which torch copies a tensor in one thread; it divides larger tensors among threads."""

_LITTLE_BYTES: Final = 1 << 20
"""Size in bytes below which choosing the best method takes longer than copying."""

_SHARED_BYTES: Final = 32 << 20
"""Size in bytes above which several threads are worthwhile."""

_MAX_THREADS: Final = 16
"""Number of threads that saturate the memory bandwidth."""

_PIECE_BYTES: Final = 16 << 20
"""Size in bytes of one thread's move."""

STEP_BYTES: Final = 16 << 20
"""Bytes between two progress reports of ``copy_in_order``."""

Tensors: TypeAlias = Sequence[torch.Tensor]

Copy: TypeAlias = Callable[[Tensors, Tensors], None]
"""Function that copies each tensor of the second sequence to its target in the first, as ``copy_tensors`` does."""


def copy_tensors(targets: Tensors, sources: Tensors) -> None:
    """Copy each source to its target, converting dtype and device; complete on return.

    Large copies use at least two threads, even if torch uses one, because readers wait for the weights, and on idle
    CPUs, two threads take two thirds of one thread's time.

    Raises:
        Exception: torch cannot copy one of the tensors; others may already have been copied.
    """
    nbytes = sum(map(_NBYTES, targets))
    if nbytes < _LITTLE_BYTES:
        _copy(targets, sources)
        return
    large = [index for index, count in enumerate(map(torch.Tensor.numel, targets)) if count > _MAX_UNDIVIDED]
    moved = movable(targets, sources, large)
    move(*_some(targets, sources, moved))
    divided = _without(large, moved) if torch.get_num_threads() > 1 else []
    others = [*moved, *divided]
    undivided = _some(targets, sources, _without(range(len(targets)), others))
    threads = min(2, threads_for(nbytes - sum(targets[index].nbytes for index in others)))
    part = -(-len(undivided[0]) // threads) or 1
    parts = [[tensors[at : at + part] for tensors in undivided] for at in range(0, len(undivided[0]), part)]
    share(threads, [functools.partial(_copy, *each) for each in parts])
    _copy(*_some(targets, sources, divided))


def _copy(targets: Tensors, sources: Tensors) -> None:
    """Copy all tensors in one call, in which ten thousand small tensors cost little more than a large one."""
    if targets:
        with torch.no_grad():  # torch keeps this setting per thread
            torch._foreach_copy_(list(targets), list(sources))


def move(targets: Tensors, sources: Tensors, threads: int = 0) -> None:
    """Copy raw memory.

    Torch's threads wait for each other after every tensor, which is slow if one of them has no CPU to run on; these
    threads do not wait.

    Args:
        targets, sources: pairs chosen by ``movable``.
        threads: number of threads; 0 chooses it by size.
    """
    pieces = [
        (target.data_ptr() + at, source.data_ptr() + at, min(_PIECE_BYTES, target.nbytes - at))
        for target, source in zip(targets, sources, strict=True)
        for at in range(0, target.nbytes, _PIECE_BYTES)
    ]
    try:
        moves = [functools.partial(_MOVE, *piece) for piece in pieces]
        share(threads or threads_for(sum(map(_NBYTES, targets))), moves)
    finally:
        increment_version(targets)  # backward passes must notice that saved values have changed


def movable(targets: Tensors, sources: Tensors, among: Sequence[int]) -> Sequence[int]:
    """Return those of the given indices whose pairs can be copied as raw memory."""

    def are_moves(indices: Sequence[int]) -> bool:
        ours, theirs = [targets[index] for index in indices], [sources[index] for index in indices]
        return are_alike(ours, theirs) and are_contiguous(ours) and are_contiguous(theirs)

    return among if are_moves(among) else [index for index in among if are_moves([index])]


def are_alike(targets: Tensors, sources: Tensors) -> bool:
    """True if all tensors are dense and on the CPU, and each pair has the same dtype and shape."""
    return (
        all(map(_are_plain, (targets, sources)))
        and all(map(operator.is_, map(_DTYPE, targets), map(_DTYPE, sources)))
        and all(map(operator.eq, map(_SHAPE, targets), map(_SHAPE, sources)))
    )


def are_contiguous(tensors: Tensors) -> bool:
    return all(map(torch.Tensor.is_contiguous, tensors))


def _are_plain(tensors: Tensors) -> bool:
    return (
        _TYPES.issuperset(map(type, tensors))
        and all(map(_IS_CPU, tensors))
        and _STRIDED.issuperset(map(_LAYOUT, tensors))
        and DENSE.issuperset(map(_DTYPE, tensors))
        and not any(map(_IS_NESTED, tensors))
        and not any(map(torch.Tensor.is_neg, tensors))
    )


def share(threads: int, calls: Iterable[Callable[[], object]]) -> None:
    """Run all calls; each thread takes the next call as soon as it is free, so that a slow thread runs fewer.

    Raises:
        Exception: the first error of a call, raised once all threads have ended.
    """
    left = iter(list(calls))

    def work() -> None:
        for call in left:
            call()

    if threads <= 1:
        work()
        return
    with ThreadPoolExecutor(threads - 1, thread_name_prefix="some of the weights") as helpers:
        helping = []
        with contextlib.suppress(RuntimeError):  # no thread can start, for example at interpreter exit
            for _ in range(threads - 1):
                helping.append(helpers.submit(work))
        work()
        for each in helping:
            each.result()


def threads_for(nbytes: int) -> int:
    """Return the number of threads for a copy of ``nbytes`` bytes."""
    there = min(len(os.sched_getaffinity(0)), max(2, torch.get_num_threads()), _MAX_THREADS)
    return there if nbytes >= _SHARED_BYTES else 1


def copy_in_order(
    targets: Tensors,
    sources: Tensors,
    ends: Sequence[int],
    copied: Callable[[int], None],
    step: int = STEP_BYTES,
    copy: Copy = copy_tensors,
) -> None:
    """Copy the tensors in order, and report the progress.

    Args:
        ends: ends of the targets, in bytes from the beginning of the first target, ascending.
        copied: called repeatedly with the number of bytes completed.
        step: bytes between two reports; larger tensors are copied in parts if possible.
        copy: function that copies several tensors.
    """
    first, before = 0, 0
    for index, (target, source, end) in enumerate(zip(targets, sources, ends, strict=True)):
        if target.nbytes > step and are_contiguous((target, source)) and target.shape == source.shape:
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


def as_integers(targets: Tensors, sources: Tensors) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """View each pair as integers, for a bitwise copy, if both tensors have the same dtype and are on a GPU.

    On a GPU, torch copies many tensors through its compute dtype, which makes all NaNs equal, and refuses some
    storage-only dtypes.
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


def _some(targets: Tensors, sources: Tensors, which: Sequence[int]) -> tuple[Tensors, Tensors]:
    if len(which) == len(targets):
        return targets, sources
    return [targets[index] for index in which], [sources[index] for index in which]


def _without(all_of_them: Sequence[int], some: Sequence[int]) -> Sequence[int]:
    gone = set(some)
    return [index for index in all_of_them if index not in gone] if gone else all_of_them
