"""``Leases``: maps and leases a sender's slots in a receiver, and keeps a slot while tensors are mapped to it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from rlinf_async._core.own_logger import own_logger
from rlinf_async.errors import ClosedError, TransferFailed
from rlinf_async.weights.memory.gpus import Gpus
from rlinf_async.weights.memory.slot import IN_SLOT, ON_GPU, MemoryName, SlotHeader, SlotLayout, Views
from rlinf_async.weights.memory.slot_reader import Pins, SlotReader
from rlinf_async.weights.model.manifest import Manifest

logger = own_logger(__name__)


class Leased(NamedTuple):
    """A version that may be read until it is released.

    Attributes:
        views: the leaves. None if they are in GPU memory that is not open here; nothing is leased in that case.
        is_on_gpu: True if the views are in a GPU's memory.
    """

    reader: SlotReader
    views: Views | None
    header: SlotHeader
    is_on_gpu: bool = False


class Leases:
    """The slots of one sender, each mapped once, and unmapped when the sender no longer uses it.

    Attributes:
        manifest: manifest of the weights; None before the announcement.
        device: GPU of the destination, if any.
        gpu: uuid of the GPU whose memory this process can open; empty if there is none.
    """

    def __init__(self, gpus: Gpus) -> None:
        self.manifest: Manifest | None = None
        self.gpu = ""
        self._gpus = gpus
        self.device: torch.device | None = None
        self._is_refused = False
        self._layout = SlotLayout(0)
        self._most = 2
        self._known: dict[int, SlotReader] = {}
        """Maps each slot's inode to its reader, least recently used first."""
        self._kept: SlotReader | None = None
        self._pins: Pins = []
        """Finalizers of released slots that other tensors still use."""
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Leases of {len(self._known)} slots>"

    @property
    def keeps_one(self) -> bool:
        return self._kept is not None

    def expect(self, manifest: Manifest, extra: int, slots: int, device: torch.device | None = None) -> None:
        """Record the announced weights.

        Args:
            device: GPU of the destination, if any.
        """
        self.manifest = manifest
        self._layout = SlotLayout(manifest.nbytes, extra)
        self._most = slots + 1
        self.device = device
        self.gpu = "" if device is None or self._is_refused else self._gpus.uuid(device)

    def is_new(self, name: MemoryName) -> bool:
        """True if the slot must be prepared, in a thread, before it is taken."""
        known = self._known.get(name.inode)
        if known is None or self._may_open(known, name):
            return True
        return not known.is_mapped and bool(known.header.places & IN_SLOT)

    def _may_open(self, reader: SlotReader, name: MemoryName) -> bool:
        is_here = name.on_gpu is not None and name.on_gpu[0] == self.gpu != ""
        return is_here and reader.views_on_gpu is None

    def prepare(self, name: MemoryName) -> None:
        """Map a slot that contains the leaves, or open its leaves on the GPU; unmap slots that the sender no longer
        uses.

        After a failure to open GPU memory, no other GPU memory is opened.

        Raises:
            TransferFailed: as for ``take``.
        """
        reader = self._find(name)
        if reader.header.places & IN_SLOT:
            _ = reader.views
        if not self._may_open(reader, name):
            return
        assert name.on_gpu is not None
        assert self.device is not None
        try:
            reader.open(self._gpus, name.on_gpu, self.device)
        except Exception as error:
            self.gpu, self._is_refused = "", True
            logger.warning(
                "the memory of the sender's GPU cannot be opened; its weights come by way of the CPU: %s", error
            )

    def take(self, name: MemoryName) -> Leased | None:
        """Lease a slot.

        Returns:
            The lease; None if the slot has no version or is being written, in which case a later version will follow.

        Raises:
            TransferFailed: this process cannot read the slot, or it differs from the announcement.
            ClosedError: the leases were released.
        """
        reader = self._find(name)
        header = reader.lease()
        if header is None:
            return None
        if self.manifest is None or header.digest[: len(self.manifest.digest)] != self.manifest.digest:
            self.release(reader)
            raise TransferFailed(f"{reader!r} holds other weights than the sender has said")
        if header.places & ON_GPU and reader.views_on_gpu is not None:
            return Leased(reader, reader.views_on_gpu, header, is_on_gpu=True)
        if header.places & IN_SLOT:
            return Leased(reader, reader.views, header)
        self.release(reader)
        return Leased(reader, None, header)

    def _find(self, name: MemoryName) -> SlotReader:
        if self._is_closed:
            raise ClosedError("the receiver of the weights is closed")
        if self.manifest is None:
            raise TransferFailed("a version was published before it was said what comes")
        reader = self._known.pop(name.inode, None) or SlotReader(name, self.manifest, self._layout)
        self._known[name.inode] = reader
        for inode in list(self._known)[: -self._most]:
            if self._known[inode] is not self._kept:
                self._close(self._known[inode])
        return reader

    def release(self, reader: SlotReader) -> None:
        """Release a slot unless it is kept."""
        if reader is not self._kept:
            reader.release()

    def keep(self, reader: SlotReader | None) -> None:
        """Record that the receiver's tensors are now mapped to this slot instead of the previous slot."""
        before, self._kept = self._kept, reader
        if before is None or before is reader:
            return
        # Close a slot that other tensors still use, which keeps its lease: otherwise, the sender would overwrite their
        # values with the next version.
        if before.is_looked_at():
            self._close(before)
        else:
            before.release()

    def pinned(self, standing: int) -> int:
        """Return the number of slots that other tensors use, including the slot with the receiver's tensors.

        Args:
            standing: number of the receiver's tensors that are mapped to that slot.
        """
        self._pins = [pin for pin in self._pins if pin.alive]
        return len(self._pins) + (self._kept is not None and self._kept.is_looked_at(standing))

    def _close(self, reader: SlotReader) -> None:
        self._known.pop(reader.name.inode, None)
        self._pins += reader.leave()

    @property
    def has_unkept(self) -> bool:
        return any(reader is not self._kept for reader in list(self._known.values()))

    def shed(self) -> None:
        """Release all slots that are not kept; slow, so call it in a thread."""
        for reader in list(self._known.values()):
            if reader is not self._kept:
                self._close(reader)

    def forget(self) -> None:
        """Release all slots, once no tensor is mapped to them any more."""
        self._kept = None
        self.shed()

    def close(self) -> None:
        """Release all slots permanently; call this in a thread if they are large. Idempotent."""
        self._is_closed = True
        self.forget()
