"""The exact binary difference between two versions of packed weights, in as few bytes as possible.

Both regions have the manifest's layout. They are compared as integers, in *pieces*: a leaf, part of a large leaf, or
neighbouring small leaves with the same element size. Each piece takes the smallest of these forms:

    same      nothing
    gaps      for each changed element, 16 bits that count the skipped elements before it; then the new values
    dense     the whole piece

Values are absolute, so applying a delta twice is harmless, and NaN and -0.0 need no special treatment.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import numpy
import torch

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.copying import INTEGERS
from rlinf_async.weights.model.leaf_memory import LeafMemory
from rlinf_async.weights.model.manifest import ALIGNMENT, Manifest, dtype_of

PIECE: Final = 2 << 20
"""Size in bytes of a piece on a CPU; both versions of a piece should stay in the cache."""

GPU_PIECE: Final = 64 << 20
"""Size in bytes of a piece on a GPU, where each call costs as much as comparing several megabytes."""

_SMALL: Final = 64 << 10  # smaller leaves share a piece
_SAME, _GAPS, _DENSE = range(3)
_ESCAPE: Final = 0xFFFF  # a gap of this size skips that many elements and changes none
_ENTRY: Final = struct.Struct("<BII")  # form, changed elements, gaps including escapes


@dataclass(frozen=True)
class Delta:
    """The difference between two versions.

    Attributes:
        head: forms of the pieces; a few bytes per piece.
        body: gaps and values, a one-dimensional uint8 tensor on the comparison's device; at most ``manifest.nbytes``.
    """

    head: bytes
    body: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Total size of head and body."""
        return len(self.head) + self.body.numel()

    def apply(self, manifest: Manifest, region: torch.Tensor | LeafMemory) -> None:
        """Turn the base into the new version, in place; the body must be on the region's device.

        Args:
            manifest: the manifest used by ``encode``.
            region: the base, as packed memory or as a model's tensors.

        Raises:
            WeightMismatch: the delta belongs to other weights or is damaged; nothing was written.
        """
        try:
            digest, size, table = msgpack.unpackb(self.head)
            entries: list[Any] = list(_ENTRY.iter_unpack(table))
            if not isinstance(size, int) or size < 1 or size % ALIGNMENT:
                raise ValueError(f"its pieces have {size!r} bytes")
        except Exception as error:
            raise WeightMismatch(f"what arrived is no delta of weights: {error!r}") from error
        if digest != manifest.digest:
            raise WeightMismatch(
                f"the delta is of weights with manifest {digest.hex()[:8]}, and these have {manifest.digest.hex()[:8]}"
            )
        pieces = list(_pieces(manifest, size))
        is_whole = len(entries) == len(pieces) and all(
            form <= _DENSE and changed <= piece.count for piece, (form, changed, _) in zip(pieces, entries, strict=True)
        )
        sizes = [piece.nbytes(*entry) for piece, entry in zip(pieces, entries, strict=True)] if is_whole else []
        if not is_whole or sum(sizes) != self.body.numel():
            raise WeightMismatch(f"the delta is damaged: {len(entries)} entries, {self.body.numel()} bytes")
        work = [each for each in zip(pieces, entries, torch.split(self.body, sizes), strict=True) if each[2].numel()]
        for piece, entry, section in work:
            _check(piece, section, *entry)
        for piece, entry, section in work:
            with piece.edit(region) as octets:
                _write(octets.view(piece.dtype), section, *entry)


@dataclass(frozen=True)
class _DeltaPiece:
    """Elements of equal size in a region; ``begin``, ``end`` and ``unit`` are in bytes."""

    begin: int
    end: int
    unit: int

    @property
    def count(self) -> int:
        return (self.end - self.begin) // self.unit

    @property
    def dtype(self) -> torch.dtype:
        return INTEGERS[self.unit]

    def of(self, region: torch.Tensor | LeafMemory) -> torch.Tensor:
        octets = region.read(self.begin, self.end) if isinstance(region, LeafMemory) else region[self.begin : self.end]
        return octets.view(self.dtype)

    def edit(self, region: torch.Tensor | LeafMemory) -> contextlib.AbstractContextManager[torch.Tensor]:
        if isinstance(region, LeafMemory):
            return region.edit(self.begin, self.end)
        return contextlib.nullcontext(region[self.begin : self.end])

    def nbytes(self, form: int, changed: int, gaps: int) -> int:
        """Return the size of the piece's section in the body; values begin at a multiple of 8."""
        positions = (0, 2 * gaps, 0)[form]
        values = (0, changed, self.count)[form] * self.unit
        return _padded(positions) + _padded(values)


def encode(
    manifest: Manifest,
    base: torch.Tensor | None,
    new: torch.Tensor | LeafMemory,
    piece: int = PIECE,
    *,
    snapshot: torch.Tensor | None = None,
) -> Delta:
    """Compare two versions.

    Args:
        manifest: layout of both versions.
        base: one-dimensional uint8 tensor of at least ``manifest.nbytes``; without a base, the delta contains all of
            ``new``.
        new: the new version in the same form, or as a model's tensors, on the same device.
        piece: size of a piece, a multiple of 256.
        snapshot: memory to which the new version is also copied while it is in the cache; may be the base.

    Returns:
        A delta with its own memory. Head and body depend on the piece size but not on the device; every delta turns the
        base into the same new version.
    """
    table, sections = bytearray(), []
    for part in _pieces(manifest, piece):
        after = part.of(new)
        form, changed, gaps, parts = (
            (_DENSE, part.count, 0, [after]) if base is None else _encode(part, part.of(base), after)
        )
        table += _ENTRY.pack(form, changed, gaps)
        for section in parts:
            octets = section.view(torch.uint8)
            sections.append(octets)
            if missing := _padded(octets.numel()) - octets.numel():
                sections.append(octets.new_zeros(missing))
        if snapshot is not None and form != _SAME:
            part.of(snapshot).copy_(after)
    head = msgpack.packb([manifest.digest, piece, bytes(table)])
    return Delta(head, torch.cat(sections) if sections else torch.empty(0, dtype=torch.uint8, device=new.device))


def _pieces(manifest: Manifest, size: int) -> Iterator[_DeltaPiece]:
    """Yield the pieces, which depend only on manifest and size and are therefore equal on both sides."""
    begin = end = unit = 0
    for leaf in manifest.leaves:
        own = min(dtype_of(leaf.transport_dtype).itemsize, 8)
        padded = -(-leaf.nbytes // ALIGNMENT) * ALIGNMENT
        if leaf.nbytes < _SMALL and own == unit and leaf.offset + padded - begin <= size:
            end = leaf.offset + padded
            continue
        if end > begin:
            yield _DeltaPiece(begin, end, unit)
        begin, end, unit = leaf.offset, leaf.offset + padded, own
        if leaf.nbytes >= _SMALL:
            for start in range(begin, begin + leaf.nbytes, size):
                yield _DeltaPiece(start, min(start + size, begin + leaf.nbytes), unit)
            begin, unit = end, 0
    if end > begin:
        yield _DeltaPiece(begin, end, unit)


def _encode(piece: _DeltaPiece, before: torch.Tensor, after: torch.Tensor) -> tuple[int, int, int, list[torch.Tensor]]:
    different = _compared(before, after)
    changed = int(numpy.count_nonzero(different.numpy()) if different.device.type == "cpu" else different.sum())
    if not changed:
        return _SAME, 0, 0, []
    # Compare with the smallest possible gaps first, so that most dense pieces need no search for positions.
    dense = piece.nbytes(_DENSE, changed, 0)
    if piece.nbytes(_GAPS, changed, changed) < dense:
        positions = _positions(different)
        gaps = _to_gaps(positions)
        if piece.nbytes(_GAPS, changed, gaps.numel()) < dense:
            return _GAPS, changed, gaps.numel(), [gaps, after.index_select(0, positions)]
    return _DENSE, changed, 0, [after]


def _check(piece: _DeltaPiece, section: torch.Tensor, form: int, changed: int, gaps: int) -> None:
    """Check that the section changes as many elements as it claims, all within the piece."""
    if form == _GAPS:
        skipped = section[: 2 * gaps].view(torch.int16).to(torch.int32) & _ESCAPE
        escapes = int((skipped == _ESCAPE).sum())
        fits = gaps - escapes == changed and int(skipped.sum()) + changed <= piece.count
    else:
        fits = True
    if not fits:
        raise WeightMismatch(f"the delta is damaged: bytes {piece.begin} to {piece.end} do not hold what it says")


def _write(target: torch.Tensor, section: torch.Tensor, form: int, changed: int, gaps: int) -> None:
    dtype = target.dtype
    if form == _DENSE:
        target.copy_(section[: target.nbytes].view(dtype))
        return
    values = section[section.numel() - _padded(changed * target.itemsize) :][: changed * target.itemsize].view(dtype)
    target.index_copy_(0, _from_gaps(section[: 2 * gaps].view(torch.int16)), values)


def _padded(nbytes: int) -> int:
    return -(-nbytes // 8) * 8


# On a CPU, numpy performs these operations about five times as fast as torch.


def _compared(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    if before.device.type == "cpu":
        return torch.from_numpy(before.numpy() != after.numpy())
    return before != after


def _positions(mask: torch.Tensor) -> torch.Tensor:
    if mask.device.type == "cpu":
        return torch.from_numpy(numpy.flatnonzero(mask.numpy()))
    return mask.nonzero().view(-1)


def _to_gaps(positions: torch.Tensor) -> torch.Tensor:
    skipped = torch.diff(positions, prepend=positions.new_full((1,), -1)) - 1
    ends = (skipped // _ESCAPE + 1).cumsum(0)
    gaps = skipped.new_full((int(ends[-1]),), _ESCAPE)
    gaps[ends - 1] = skipped % _ESCAPE
    return torch.where(gaps > 0x7FFF, gaps - 0x10000, gaps).to(torch.int16)


def _from_gaps(gaps: torch.Tensor) -> torch.Tensor:
    skipped = gaps.to(torch.int64) & _ESCAPE
    is_value = skipped != _ESCAPE
    return (skipped + is_value).cumsum(0)[is_value] - 1
