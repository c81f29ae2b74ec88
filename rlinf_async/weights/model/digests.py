"""Digests of weights: SHA-256 of each tensor that a destination holds, in the tensor's own dtype."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgpack
import torch

from rlinf_async.weights.model.copying import share, threads_for
from rlinf_async.weights.model.fit import as_bytes, with_one_nan
from rlinf_async.weights.model.manifest import Manifest, dtype_name, dtype_of
from rlinf_async.weights.model.param_tree import name_of
from rlinf_async.weights.model.places import StackPart, piece_of
from rlinf_async.weights.model.shards import Slice

_DIGEST_BYTES: Final = 32
_TOGETHER: Final = 64  # number of tensors that a thread hashes at a time

Parts: TypeAlias = Sequence[StackPart | Slice]

Form: TypeAlias = tuple[int, str, Parts]
"""Leaf index, dtype of the tensor that holds the leaf, and the part of the leaf that it holds (empty: all)."""


def digests_of(manifest: Manifest, held: Iterable[tuple[int, Parts, torch.Tensor]]) -> tuple[bytes, bytes]:
    """Return packed forms of a destination's tensors (empty: all leaves in transport form), and their digests.

    Args:
        held: for each tensor, its leaf's index, the part of the leaf that it holds, and the tensor.
    """
    held = list(held)
    forms: list[Form] = [(leaf, dtype_name(tensor.dtype), parts) for leaf, parts, tensor in held]
    packed: Any = b"" if forms == _as_sent(manifest) else msgpack.packb(forms)
    return packed, _hashed(manifest, forms, [tensor for _, _, tensor in held])


class ExpectedDigests:
    """The digests of one packed version, in the forms in which receivers hold it; for use by one thread."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._version = 0
        self._known: dict[bytes, bytes] = {}
        self._in_use: set[bytes] = set()

    def following(self) -> ExpectedDigests:
        """Return digests for the next version, in the forms requested for this version."""
        others = ExpectedDigests(self._manifest)
        others._in_use = set(self._in_use or self._known)
        return others

    def begin(self, version: int, leaves: Sequence[torch.Tensor]) -> None:
        """Hash a version in the forms requested for the previous version."""
        if version != self._version:
            in_use, self._in_use = self._in_use or {b""}, set()
            self._version, self._known = version, {forms: self._of(forms, leaves) for forms in in_use}

    def differing(self, version: int, leaves: Sequence[torch.Tensor], forms: bytes, digests: bytes) -> list[str]:
        """Return the names of tensors whose values at a receiver differ from this version."""
        self.begin(version, leaves)
        self._in_use.add(forms)
        if forms not in self._known:
            self._known[forms] = self._of(forms, leaves)
        known = self._known[forms]
        if known == digests:
            return []
        places = [slice(at, at + _DIGEST_BYTES) for at in range(0, len(known), _DIGEST_BYTES)]
        pairs = zip(self._forms(forms), places, strict=True)
        differ = {leaf for (leaf, *_), place in pairs if known[place] != digests[place]}
        return [name_of(self._manifest.leaves[leaf].path) for leaf in sorted(differ)]

    def _forms(self, packed: bytes) -> list[Form]:
        return msgpack.unpackb(packed) if packed else _as_sent(self._manifest)

    def _of(self, packed: bytes, leaves: Sequence[torch.Tensor]) -> bytes:
        forms, tensors = self._forms(packed), []
        for leaf, _, parts in forms:
            tensors.append(leaves[leaf])
            for part in parts:
                tensors[-1] = piece_of(tensors[-1], part)
        return _hashed(self._manifest, forms, tensors)


def _as_sent(manifest: Manifest) -> list[Form]:
    return [(index, leaf.transport_dtype, ()) for index, leaf in enumerate(manifest.leaves)]


def _hashed(manifest: Manifest, forms: Sequence[Form], tensors: Sequence[torch.Tensor]) -> bytes:
    """Return the concatenated digests, in the forms' order."""
    found = [b""] * len(forms)

    def hash_some(numbers: range) -> None:
        for number in numbers:
            leaf, dtype, _ = forms[number]
            is_cast = dtype != manifest.leaves[leaf].transport_dtype
            tensor = with_one_nan(tensors[number], dtype_of(dtype)) if is_cast else tensors[number]
            found[number] = hashlib.sha256(_buffer(tensor)).digest()

    numbers = range(len(forms))
    some = [numbers[first : first + _TOGETHER] for first in numbers[::_TOGETHER]]
    share(threads_for(sum(tensor.nbytes for tensor in tensors)), [functools.partial(hash_some, each) for each in some])
    return b"".join(found)


def _buffer(tensor: torch.Tensor) -> Any:
    """Return the tensor's bytes, bypassing torch's view, which takes ten times as long as hashing a small tensor."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not (tensor.is_conj() or tensor.is_neg())
    if is_plain and tensor.is_cpu and tensor.is_contiguous():
        return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return as_bytes(tensor.cpu()).numpy()
