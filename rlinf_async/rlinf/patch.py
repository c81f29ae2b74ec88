"""Patches of weights (full, empty or compressed), and checksums of the weights to which they apply."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from rlinf_async.errors import WeightMismatch
from rlinf_async.rlinf.sending import Sending
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.model.param_tree import Path, name_of


@dataclass(frozen=True)
class _Patch:
    """The identities of a patch's new weights, and of the weights to which it applies.

    Attributes:
        sending: the transmission that the patch produces.
        base: the transmission to which it applies, or the common initial weights; None if it is complete and applies to
            any weights.
        manifest: manifest of the weights, for a receiver that may not have it yet; otherwise empty.
    """

    sending: Sending
    base: Sending | None
    manifest: bytes

    @property
    def version(self) -> int:
        return self.sending.version


@dataclass(frozen=True)
class EmptyWeightPatch(_Patch):
    """A transmission in which nothing has changed."""


@dataclass(frozen=True)
class WeightPatch(_Patch):
    """The changes from one transmission to another, with the ``head`` and ``body`` of a ``Delta``."""

    head: bytes
    body: torch.Tensor


@dataclass(frozen=True)
class CompressedWeightPatch:
    """A ``WeightPatch`` whose body is compressed with zlib."""

    patch: WeightPatch
    compressed: bytes

    def decompressed(self) -> WeightPatch:
        """Return the decompressed patch.

        Raises:
            WeightMismatch: the patch is damaged.
        """
        try:
            body = torch.frombuffer(bytearray(zlib.decompress(self.compressed)), dtype=torch.uint8)
        except (zlib.error, ValueError) as error:
            raise WeightMismatch(f"the compressed patch is damaged: {error}") from error
        return replace(self.patch, body=body)


def checksums(manifest: Manifest, tensors: Mapping[Path, torch.Tensor]) -> dict[str, int]:
    """Return a dict that maps each name to the checksum of its leaf's bytes; a tied leaf has several names."""
    sums = {}
    for leaf in manifest.leaves:
        flat = tensors[leaf.path].detach().cpu().contiguous().view(-1).view(torch.uint8)
        sums[leaf.path] = zlib.crc32(flat.numpy().data)
    return {name_of(path): sums[leaf.path] for path, leaf in sorted(manifest.by_path.items())}
