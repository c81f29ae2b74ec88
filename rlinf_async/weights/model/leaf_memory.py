"""A model's own tensors, read and written as if they lay in one packed region."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterator, Sequence

import torch

from rlinf_async.weights.model.manifest import Leaf, Manifest, dtype_of


class LeafMemory:
    """The region that a manifest describes, without having one: stretches of it are put together when they are needed.

    Args:
        manifest: what lies where, and as which dtype.
        tensors: of every leaf of the manifest, in its order and of its shape.  What is read is cast to the transport
            dtype; what is written has to be of it already.
        device: where stretches that must be put together are.
    """

    def __init__(self, manifest: Manifest, tensors: Sequence[torch.Tensor], device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._leaves = manifest.leaves
        self._offsets = [leaf.offset for leaf in manifest.leaves]
        self._tensors = [tensor.detach() for tensor in tensors]
        self._flat: tuple[int, torch.Tensor] | None = None

    def read(self, begin: int, end: int) -> torch.Tensor:
        """Bytes ``begin`` to ``end``, which may be the tensors' own memory."""
        parts = self._parts(begin, end)
        if len(parts) == 1 and self._is_simple(*parts[0], end - begin):
            return self._own(parts[0][0], begin, end)
        buffer = torch.zeros(end - begin, dtype=torch.uint8, device=self.device)
        for index, leaf in parts:
            low, high = max(begin, leaf.offset), min(end, leaf.offset + leaf.nbytes)
            transported = dtype_of(leaf.transport_dtype)
            low_item, high_item = ((place - leaf.offset) // transported.itemsize for place in (low, high))
            target, source = buffer[low - begin : high - begin], self._flattened(index)[low_item:high_item]
            if source.dtype == transported:
                target.copy_(source.view(torch.uint8))  # bit for bit, whatever torch does with values of that dtype
            else:
                target.view(transported).copy_(source)
        return buffer

    @contextlib.contextmanager
    def edit(self, begin: int, end: int) -> Iterator[torch.Tensor]:
        """Bytes ``begin`` to ``end``; what is written to them is in the tensors at the end of the block."""
        parts = self._parts(begin, end)
        if len(parts) == 1 and self._is_simple(*parts[0], end - begin):
            yield self._own(parts[0][0], begin, end)
            return
        buffer = self.read(begin, end)
        yield buffer
        for index, leaf in parts:
            low, high = max(begin, leaf.offset), min(end, leaf.offset + leaf.nbytes)
            dtype = dtype_of(leaf.transport_dtype)
            low_item, high_item = ((place - leaf.offset) // dtype.itemsize for place in (low, high))
            values, tensor = buffer[low - begin : high - begin].view(dtype), self._tensors[index]
            if tensor.is_contiguous():
                tensor.view(-1)[low_item:high_item].view(torch.uint8).copy_(values.view(torch.uint8))
            else:
                whole = tensor.contiguous().view(-1)  # a copy
                whole[low_item:high_item] = values.to(whole.device)
                tensor.copy_(whole.view(tensor.shape))
                self._flat = None

    def _parts(self, begin: int, end: int) -> list[tuple[int, Leaf]]:
        """The leaves that have bytes there."""
        first = max(bisect.bisect_right(self._offsets, begin) - 1, 0)
        found = []
        for index in range(first, len(self._leaves)):
            leaf = self._leaves[index]
            if leaf.offset >= end:
                break
            if leaf.nbytes and leaf.offset + leaf.nbytes > begin:
                found.append((index, leaf))
        return found

    def _is_simple(self, index: int, leaf: Leaf, nbytes: int) -> bool:
        tensor = self._tensors[index]
        return (
            tensor.is_contiguous()
            and tensor.dtype == dtype_of(leaf.transport_dtype)
            and tensor.device == self.device
            and nbytes % tensor.itemsize == 0
            and nbytes <= leaf.nbytes
        )

    def _own(self, index: int, begin: int, end: int) -> torch.Tensor:
        offset = self._leaves[index].offset
        return self._tensors[index].view(-1).view(torch.uint8)[begin - offset : end - offset]

    def _flattened(self, index: int) -> torch.Tensor:
        tensor = self._tensors[index]
        if tensor.is_contiguous():
            return tensor.view(-1)
        # Its parts are asked for one after the other: it is put in order once.
        if self._flat is None or self._flat[0] != index:
            self._flat = index, tensor.contiguous().view(-1)
        return self._flat[1]
