"""Memory that is copied as it is, where torch would convert nothing: by threads that do not wait for each other.

Example:
    moves = Moves.of(targets, sources)
    moves.move(threads=2)
    wrote(targets)
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch
from torch.autograd.graph import increment_version

_MOVE: Final = ctypes.CDLL(None).memmove  # lets other threads run meanwhile
_MOVE.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_MOVE.restype = None

_DENSE: Final = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not dtype.is_complex and not str(dtype).startswith("torch.q")
)
"""Of these equal values are equal bytes, but for the sign of what is lazily negated."""

_TYPES: Final = frozenset({torch.Tensor, torch.nn.Parameter})
"""Others may mean something else than their memory."""

_STRIDED: Final = frozenset({torch.strided})
_IS_CPU: Final = operator.attrgetter("is_cpu")
_IS_NESTED: Final = operator.attrgetter("is_nested")
_LAYOUT: Final = operator.attrgetter("layout")
_DTYPE: Final = operator.attrgetter("dtype")
_SHAPE: Final = operator.attrgetter("shape")

_PIECE: Final = 16 << 20
"""Bytes that a thread copies at a time."""


class Moves:
    """Pieces of memory, and where each of them goes.

    Args:
        pieces: to which address, from which, and how many bytes.
    """

    def __init__(self, pieces: Iterable[tuple[int, int, int]]) -> None:
        self._pieces = list(pieces)
        self.nbytes = sum(nbytes for _, _, nbytes in self._pieces)

    def __repr__(self) -> str:
        return f"<Moves [{len(self._pieces)} of {self.nbytes} bytes]>"

    @classmethod
    def of(cls, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Moves:
        """Of tensors that ``moves_among`` has found; they have to live until all is moved."""
        addresses = [map(torch.Tensor.data_ptr, tensors) for tensors in (targets, sources)]
        return cls(zip(*addresses, map(operator.attrgetter("nbytes"), targets), strict=True))

    def move(self, threads: int = 1) -> None:
        """Done when it returns."""
        share(threads, [functools.partial(_MOVE, *piece) for piece in self._cut()])

    def _cut(self) -> list[tuple[int, int, int]]:
        """In pieces of a few megabytes."""
        return [
            (target + start, source + start, min(_PIECE, nbytes - start))
            for target, source, nbytes in self._pieces
            for start in range(0, nbytes, _PIECE)
        ]


def share(threads: int, calls: Iterable[Callable[[], object]]) -> None:
    """Makes all calls, each thread the next one as soon as it is free: one that others keep from running does less.

    Raises:
        Exception: the first that a call raises, when all threads have ended.
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
        with contextlib.suppress(RuntimeError):  # no thread can be started, at the end of an interpreter for one
            for _ in range(threads - 1):
                helping.append(helpers.submit(work))
        work()
        for each in helping:
            each.result()


def moves_among(
    targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], among: Sequence[int]
) -> Sequence[int]:
    """Which of them are copied by moving memory, and nothing else.

    Args:
        among: indices of the pairs that are looked at.
    """
    if _are_moves([targets[index] for index in among], [sources[index] for index in among]):
        return among
    return [index for index in among if _are_moves([targets[index]], [sources[index]])]


def wrote(targets: Iterable[torch.Tensor]) -> None:
    """Tells autograd that they have been written to: what it keeps of them for a backward is not theirs any more."""
    for target in targets:
        increment_version(target)


def are_alike(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> bool:
    """Whether all of them are dense tensors on the CPU, and those of each pair of one dtype and shape."""
    return (
        all(map(_are_plain, (targets, sources)))
        and all(map(operator.is_, map(_DTYPE, targets), map(_DTYPE, sources)))
        and all(map(operator.eq, map(_SHAPE, targets), map(_SHAPE, sources)))
    )


def are_contiguous(tensors: Sequence[torch.Tensor]) -> bool:
    return all(map(torch.Tensor.is_contiguous, tensors))


def _are_moves(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> bool:
    return are_alike(targets, sources) and are_contiguous(targets) and are_contiguous(sources)


def _are_plain(tensors: Sequence[torch.Tensor]) -> bool:
    return (
        _TYPES.issuperset(map(type, tensors))
        and all(map(_IS_CPU, tensors))
        and _STRIDED.issuperset(map(_LAYOUT, tensors))
        and _DENSE.issuperset(map(_DTYPE, tensors))
        and not any(map(_IS_NESTED, tensors))
        and not any(map(torch.Tensor.is_neg, tensors))
    )
