"""The slots of its sender that a receiver has mapped, and those of them that it keeps from being written."""

from __future__ import annotations

from typing import NamedTuple

import torch

from rlinf_async.errors import TransferFailed
from rlinf_async.weights.manifest import Manifest
from rlinf_async.weights.param_tree import Path
from rlinf_async.weights.slab import MemoryName, SlotReader
from rlinf_async.weights.slab_layout import SlotHeader, SlotLayout


class Leased(NamedTuple):
    """A version that may be looked at until it is released.

    Attributes:
        views: its leaves, where they lie.
    """

    reader: SlotReader
    views: dict[Path, torch.Tensor]
    header: SlotHeader


class Leases:
    """Slots are mapped once, and unmapped when the sender has left them.

    Attributes:
        manifest: of the weights; None until the sender has said what comes.
    """

    def __init__(self) -> None:
        self.manifest: Manifest | None = None
        self._layout = SlotLayout(0)
        self._most = 2
        self._known: dict[int, tuple[SlotReader, dict[Path, torch.Tensor]]] = {}
        """By inode, that which was used last at the end."""
        self._kept: SlotReader | None = None

    def __repr__(self) -> str:
        return f"<Leases of {len(self._known)} slots>"

    @property
    def keeps_one(self) -> bool:
        return self._kept is not None

    def expect(self, manifest: Manifest, extra: int, slots: int) -> None:
        """The sender has said what comes."""
        self.manifest = manifest
        self._layout = SlotLayout(manifest.nbytes, extra)
        self._most = slots + 1

    def take(self, name: MemoryName) -> Leased | None:
        """Leases a slot.

        Returns:
            None where nothing is, or is being written: a later version comes.

        Raises:
            TransferFailed: it cannot be read here, or is not what the sender has said.
        """
        if self.manifest is None:
            raise TransferFailed("a version was published before it was said what comes")
        known = self._known.pop(name.inode, None)
        if known is None:
            reader = SlotReader(name, self._layout)
            known = reader, self.manifest.views(reader.leaves)
        self._known[name.inode] = known
        for inode in list(self._known)[: -self._most]:
            if self._known[inode][0] is not self._kept:
                self._known.pop(inode)[0].close()
        reader, views = known
        header = reader.lease()
        if header is None:
            return None
        if header.digest[: len(self.manifest.digest)] != self.manifest.digest:
            self.release(reader)
            raise TransferFailed(f"{reader!r} holds other weights than the sender has said")
        return Leased(reader, views, header)

    def release(self, reader: SlotReader) -> None:
        """It is not looked at any more, unless it is kept."""
        if reader is not self._kept:
            reader.release()

    def keep(self, reader: SlotReader) -> None:
        """The receiver's tensors stand in it from now on, and not in the one before any more."""
        before, self._kept = self._kept, reader
        if before is not None and before is not reader:
            before.release()

    def close(self) -> None:
        """Gives all of them back.  Idempotent."""
        known, self._known, self._kept = self._known, {}, None
        for reader, _ in known.values():
            reader.close()
