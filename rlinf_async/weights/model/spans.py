"""Memory that is copied as it is, where torch would convert nothing: by threads that do not wait for each other.

Example:
    spans = Spans.of(targets, sources)
    spans.move(threads=2)
    wrote(targets)
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Iterable, Sequence
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
_LAYOUT: Final = operator.attrgetter("layout")
_DTYPE: Final = operator.attrgetter("dtype")
_SHAPE: Final = operator.attrgetter("shape")

_LINE: Final = 64
"""Bytes; a piece of memory is cut where a line of the cache ends."""


class Spans:
    """Pieces of memory, and where each of them goes.

    Args:
        pieces: to which address, from which, and how many bytes.
    """

    def __init__(self, pieces: Iterable[tuple[int, int, int]]) -> None:
        self._pieces = list(pieces)
        self.nbytes = sum(nbytes for _, _, nbytes in self._pieces)

    def __repr__(self) -> str:
        return f"<Spans [{len(self._pieces)} of {self.nbytes} bytes]>"

    @classmethod
    def of(cls, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Spans:
        """Of tensors that ``moves_among`` has found; they have to live until all is moved."""
        addresses = [map(torch.Tensor.data_ptr, tensors) for tensors in (targets, sources)]
        return cls(zip(*addresses, map(operator.attrgetter("nbytes"), targets), strict=True))

    def move(self, threads: int = 1) -> None:
        """Done when it returns."""
        if threads <= 1:
            _move(self._pieces)
            return
        first, *others = self._divided(threads)
        with ThreadPoolExecutor(max(1, len(others)), thread_name_prefix="some of the weights") as helpers:
            moving = [helpers.submit(_move, pieces) for pieces in others]
            _move(first)
            for each in moving:
                each.result()

    def _divided(self, parts: int) -> list[list[tuple[int, int, int]]]:
        """In lists of about as many bytes."""
        most = -(-self.nbytes // parts // _LINE) * _LINE or _LINE
        found: list[list[tuple[int, int, int]]] = [[]]
        room = most
        for target, source, nbytes in self._pieces:
            begin = 0
            while nbytes - begin > room:
                found[-1].append((target + begin, source + begin, room))
                begin += room
                found.append([])
                room = most
            found[-1].append((target + begin, source + begin, nbytes - begin))
            room -= nbytes - begin
        return found


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


def _are_moves(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> bool:
    return (
        all(map(operator.is_, map(_DTYPE, targets), map(_DTYPE, sources)))
        and all(map(operator.eq, map(_SHAPE, targets), map(_SHAPE, sources)))
        and all(map(_are_plain, (targets, sources)))
    )


def _are_plain(tensors: Sequence[torch.Tensor]) -> bool:
    return (
        _TYPES.issuperset(map(type, tensors))
        and all(map(_IS_CPU, tensors))
        and _STRIDED.issuperset(map(_LAYOUT, tensors))
        and _DENSE.issuperset(map(_DTYPE, tensors))
        and all(map(torch.Tensor.is_contiguous, tensors))
        and not any(map(torch.Tensor.is_neg, tensors))
    )


def _move(pieces: Sequence[tuple[int, int, int]]) -> None:
    for target, source, nbytes in pieces:
        _MOVE(target, source, nbytes)
