"""``LeafMemory``: a model's own tensors, read and written as if they were one packed region."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterator, Sequence

import torch

from rlinf_async.weights.model.manifest import Manifest, dtype_of


class LeafMemory:
    """The region that a manifest describes, assembled on demand from tensors, section by section.

    Args:
        manifest: layout and dtypes.
        tensors: the leaves' tensors in the manifest's order, contiguous and with the leaves' shapes. Reading casts to
            the transport dtype; writing requires tensors of that dtype.
        device: device for assembled sections.
    """

    def __init__(self, manifest: Manifest, tensors: Sequence[torch.Tensor], device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._leaves = manifest.leaves
        self._offsets = [leaf.offset for leaf in manifest.leaves]
        self._flat = [tensor.detach().view(-1) for tensor in tensors]

    def read(self, begin: int, end: int) -> torch.Tensor:
        """Return bytes ``begin`` to ``end``, possibly the tensors' own memory."""
        own = self._own(begin, end)
        if own is not None:
            return own
        buffer = torch.zeros(end - begin, dtype=torch.uint8, device=self.device)
        for items, dtype, octets in self._parts(begin, end):
            if items.dtype == dtype:
                # Copy the bits, because torch's own copy may change some values.
                buffer[octets].copy_(items.view(torch.uint8))
            else:
                buffer[octets].view(dtype).copy_(items)
        return buffer

    @contextlib.contextmanager
    def edit(self, begin: int, end: int) -> Iterator[torch.Tensor]:
        """Yield bytes ``begin`` to ``end``; when the block ends, changes are written to the tensors."""
        buffer = self.read(begin, end)
        yield buffer
        if self._own(begin, end) is None:
            for items, _, octets in self._parts(begin, end):
                items.view(torch.uint8).copy_(buffer[octets])

    def _parts(self, begin: int, end: int) -> Iterator[tuple[torch.Tensor, torch.dtype, slice]]:
        """Yield each leaf's elements in the range, their transport dtype, and their position in the range."""
        for index in range(max(bisect.bisect_right(self._offsets, begin) - 1, 0), len(self._leaves)):
            leaf = self._leaves[index]
            if leaf.offset >= end:
                break
            low, high = max(begin, leaf.offset), min(end, leaf.offset + leaf.nbytes)
            if low < high:
                dtype = dtype_of(leaf.transport_dtype)
                first, last = ((place - leaf.offset) // dtype.itemsize for place in (low, high))
                yield self._flat[index][first:last], dtype, slice(low - begin, high - begin)

    def _own(self, begin: int, end: int) -> torch.Tensor | None:
        """Return these bytes if they are a single tensor's memory, else None."""
        parts = list(self._parts(begin, end))
        if len(parts) != 1:
            return None
        items, dtype, octets = parts[0]
        is_all = octets == slice(0, end - begin) and items.nbytes == end - begin
        is_own = items.dtype == dtype and items.device == self.device
        return items.view(torch.uint8) if is_all and is_own else None
