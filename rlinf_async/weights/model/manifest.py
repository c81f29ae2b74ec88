"""The layout of a model's tensors in one block of memory, on which both sides agree once."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Final, TypeAlias

import msgpack
import torch

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.param_tree import ParamTree, Path, name_of, why_without_values

TransportDtype: TypeAlias = torch.dtype | str | Callable[[str, torch.dtype], torch.dtype | str | None] | None

ALIGNMENT: Final = 256
"""Alignment in bytes: a multiple of every element size, and of the sizes of cache lines and GPU memory accesses."""

_FORMAT: Final = 1
_STRINGS, _INTEGERS = frozenset({str}), frozenset({int})
_DIGEST_SIZE: Final = 16
_NAMED: Final = 5  # limit on the keys that an error names


@dataclass(frozen=True)
class Leaf:
    """One tensor of a manifest.

    Attributes:
        path: key of the tensor.
        dtype, transport_dtype: torch's names (``"float32"``) for its dtype at the sender, and for its dtype in memory.
        shape: shape of the whole tensor.
        offset, nbytes: position in memory, contiguous in row-major order; offsets are multiples of 256.
    """

    path: Path
    dtype: str
    transport_dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Manifest:
    """A model's leaves in the order of their paths, and their positions in memory.

    Attributes:
        leaves: tensors with their own memory.
        aliases: maps each further path of a tied tensor to the path of its leaf.
        nbytes: size of all leaves' memory, a multiple of 256.
        digest: 16 bytes that are equal only for equal manifests.
    """

    leaves: tuple[Leaf, ...]
    aliases: Mapping[Path, Path]
    nbytes: int
    digest: bytes

    @classmethod
    def of(cls, tree: ParamTree, transport_dtype: TransportDtype = None) -> Manifest:
        """Lay out a model's tensors.

        Args:
            tree: tensors; only their shapes and dtypes are read.
            transport_dtype: dtype of floating-point tensors in memory, its name, or a function of (dotted name, dtype),
                which may return None for no cast. Integers and booleans are never cast.

        Raises:
            WeightMismatch: a tensor is not dense, or has no memory at all.
            ValueError: torch has no such dtype.
        """
        rows = []
        for path, tensor in tree.tensors.items():
            if why := why_without_values(tensor):
                raise WeightMismatch(f"{name_of(path)!r} {why}")
            dtype = dtype_name(tensor.dtype)
            rows.append((path, dtype, _transported(path, tensor.dtype, transport_dtype), tuple(tensor.shape)))
        return _laid_out(rows, tree.aliases)

    def __repr__(self) -> str:
        return f"<Manifest of {len(self.leaves)} leaves, {self.nbytes} bytes, {self.digest.hex()[:8]}>"

    @cached_property
    def indices(self) -> Mapping[Path, int]:
        """Maps each path, including tied ones, to the index of its leaf."""
        found = {leaf.path: index for index, leaf in enumerate(self.leaves)}
        return found | {path: found[owner] for path, owner in self.aliases.items()}

    @cached_property
    def by_path(self) -> Mapping[Path, Leaf]:
        """Maps each path, including tied ones, to its leaf."""
        return {path: self.leaves[index] for path, index in self.indices.items()}

    def to_bytes(self) -> bytes:
        """Return the manifest as bytes for other processes; equal manifests give equal bytes."""
        return _encode(self.leaves, self.aliases)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Manifest:
        """Return the manifest encoded by ``to_bytes``.

        Raises:
            WeightMismatch: the data is not a manifest of this version of the framework.
        """
        try:
            number, rows, aliases = msgpack.unpackb(data)
            if number != _FORMAT:
                raise ValueError(f"its format is {number!r}, and this side knows {_FORMAT}")
            manifest = _laid_out([_checked(*row) for row in rows], {tuple(path): tuple(to) for path, to in aliases})
            manifest.indices  # noqa: B018  (a tie to a missing leaf raises a KeyError)
        except Exception as error:
            raise WeightMismatch(f"what arrived is no manifest of weights: {error!r}") from error
        return manifest

    def check(self, other: Manifest) -> None:
        """Check that this side's manifest equals the other side's.

        Raises:
            WeightMismatch: the manifests differ; the error names the first differing keys, and how they differ.
        """
        if self.digest == other.digest:
            return
        differences: list[str] = []
        mine, theirs = self.by_path, other.by_path
        for path in sorted({*mine, *theirs}):
            if path not in theirs:
                differences.append(f"{name_of(path)!r} is missing on the other side")
            elif path not in mine:
                differences.append(f"{name_of(path)!r} is on the other side only")
            elif _told(mine[path]) != _told(theirs[path]):
                differences.append(f"{name_of(path)!r} is {_told(mine[path])} here and {_told(theirs[path])} there")
            elif self.aliases.get(path) != other.aliases.get(path):
                differences.append(f"{name_of(path)!r} is tied {_tie(self, path)} here and {_tie(other, path)} there")
        more = f"; and {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
        raise WeightMismatch(f"the two sides have different weights: {'; '.join(differences[:_NAMED])}{more}")

    def views(self, memory: Any) -> dict[Path, torch.Tensor]:
        """Return the leaves as views of a block of memory, each tied tensor only once.

        Args:
            memory: at least ``nbytes`` writable bytes, whose start is a multiple of 16: a one-dimensional uint8 tensor
                on any device, or an object with the buffer protocol.

        Raises:
            ValueError: the memory is too small, misaligned, or does not consist of bytes.
        """
        if not isinstance(memory, torch.Tensor):
            memory = torch.frombuffer(memory, dtype=torch.uint8) if self.nbytes else torch.empty(0, dtype=torch.uint8)
        if memory.dtype is not torch.uint8 or memory.dim() != 1 or memory.stride() != (1,):
            raise ValueError(f"the memory is one dimension of uint8; got {memory.dtype} of shape {tuple(memory.shape)}")
        if memory.numel() < self.nbytes:
            raise ValueError(f"the leaves need {self.nbytes} bytes; the memory has {memory.numel()}")
        if memory.storage_offset() % 16:
            raise ValueError(f"the memory begins at byte {memory.storage_offset()} of its storage; no multiple of 16")
        memory = memory[: self.nbytes]
        typed = {name: memory.view(dtype_of(name)) for name in {leaf.transport_dtype for leaf in self.leaves}}
        views = {}
        for leaf in self.leaves:
            flat = typed[leaf.transport_dtype]
            begin = flat.storage_offset() + leaf.offset // flat.itemsize
            # This is the fastest way to create a view.
            views[leaf.path] = flat.as_strided(leaf.shape, _row_major(leaf.shape), begin)
        return views


# This function is cached, because it is called several times per leaf, and a model may have fifty thousand leaves.
@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return ``"float32"`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


@functools.cache
def dtype_of(name: str) -> torch.dtype:
    """Return ``torch.float32`` for ``"float32"``.

    Raises:
        ValueError: torch has no dtype of that name.
    """
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return dtype


def _transported(path: Path, dtype: torch.dtype, transport_dtype: TransportDtype) -> str:
    if transport_dtype is None or not dtype.is_floating_point:
        return dtype_name(dtype)
    if not isinstance(transport_dtype, (torch.dtype, str)):
        transport_dtype = transport_dtype(name_of(path), dtype)
        if transport_dtype is None:
            return dtype_name(dtype)
    found = dtype_of(transport_dtype) if isinstance(transport_dtype, str) else transport_dtype
    if not found.is_floating_point:
        raise ValueError(f"transport_dtype is a floating-point dtype; got {found} for {name_of(path)!r}")
    return dtype_name(found)


def _laid_out(rows: Iterable[tuple[Path, str, str, tuple[int, ...]]], aliases: Mapping[Path, Path]) -> Manifest:
    # Both sides compute the offsets, which are never sent, so that no manifest can point outside its memory.
    leaves, end = [], 0
    for path, dtype, transport_dtype, shape in rows:
        nbytes = prod(shape) * dtype_of(transport_dtype).itemsize
        leaves.append(Leaf(path, dtype, transport_dtype, shape, end, nbytes))
        end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    digest = hashlib.blake2b(_encode(leaves, aliases), digest_size=_DIGEST_SIZE)
    return Manifest(tuple(leaves), dict(aliases), end, digest.digest())


def _encode(leaves: Iterable[Leaf], aliases: Mapping[Path, Path]) -> bytes:
    rows = [(leaf.path, leaf.dtype, leaf.transport_dtype, leaf.shape) for leaf in leaves]
    packed = msgpack.packb([_FORMAT, rows, list(aliases.items())])
    assert isinstance(packed, bytes)
    return packed


def _checked(path: Any, dtype: str, transport_dtype: str, shape: Any) -> tuple[Path, str, str, tuple[int, ...]]:
    dtype_of(dtype)
    # Use sets of types, not generators, which would take longer than everything else here.
    if (
        not _STRINGS.issuperset(map(type, path))
        or not _INTEGERS.issuperset(map(type, shape))
        or min(shape, default=0) < 0
    ):
        raise ValueError(f"{path!r} with shape {shape!r}")
    return tuple(path), dtype, transport_dtype, tuple(shape)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def _told(leaf: Leaf) -> str:
    cast = f" (sent as {leaf.transport_dtype})" if leaf.transport_dtype != leaf.dtype else ""
    return f"{leaf.dtype}{list(leaf.shape)}{cast}"


def _tie(manifest: Manifest, path: Path) -> str:
    owner = manifest.aliases.get(path)
    return f"to {name_of(owner)!r}" if owner is not None else "to nothing"
