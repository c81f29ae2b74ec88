"""Slots of a sender: takes one for each version, packs, fills and replaces it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from rlinf_async._core.own_logger import own_logger
from rlinf_async.weights.memory.cuda import CUDA
from rlinf_async.weights.memory.device_leaves import DeviceLeaves, free_retired, retire, retired
from rlinf_async.weights.memory.gpus import Gpus, Registrar, copy_settled
from rlinf_async.weights.memory.slot import IN_SLOT, ON_GPU, PUBLISHED, SlotLayout, SlotWriter
from rlinf_async.weights.model.copying import Copy, copy_tensors
from rlinf_async.weights.model.manifest import Manifest

logger = own_logger(__name__)


class Store:
    """Room for several versions of one model; not thread-safe.

    A slot that is still leased when its turn comes is left to its readers, and new memory replaces it, so that a
    stopped reader delays no version. The kernel frees the old slot once its last reader has closed it.

    The leaves of a version from a GPU may be there, in the slot, or in both places; ``fill`` copies them into the slot
    when a receiver needs them there. GPU memory is allocated with the first version that uses it.

    Args:
        slots: number of slots, at least two: the latest version stays complete until the next one is.
        extra: initial size in bytes of the values other than tensors.
        gpus: interface to the GPUs.
        reserves: allocate memory for all slots now, not at the first use of each; weights on a GPU may never need it.
        most: limit on slots; beyond ``slots``, one is added when all others are read or pinned.

    Attributes:
        latest: the slot with the latest version.

    Raises:
        MemoryError, OSError: there is not enough memory, or no free file descriptor.
    """

    def __init__(
        self,
        manifest: Manifest,
        slots: int,
        extra: int = 0,
        label: str = "weights",
        gpus: Gpus = CUDA,
        *,
        reserves: bool = True,
        most: int = 0,
    ) -> None:
        self.manifest = manifest
        self.extra = extra
        self.slots = slots
        self.most = max(slots, most)
        self.layout = SlotLayout(manifest.nbytes, extra)
        self.latest: SlotWriter | None = None
        self._label = label
        self._gpus = gpus
        self._registrar = Registrar(gpus, read_only=False)
        self._copy_settled: Copy = functools.partial(copy_settled, gpus)
        self._device: torch.device | None = None
        """The GPU that holds versions."""
        self._is_refused = manifest.nbytes == 0
        self._slots: list[SlotWriter] = []
        self._on_gpu: dict[SlotWriter, DeviceLeaves] = {}
        self._before: SlotWriter | None = None
        """The slot with the version before the latest, until it is overwritten."""
        if reserves:
            self.layout.check_room(label, slots)
        try:
            for _ in range(slots):
                self._slots.append(self._make())
                if reserves:
                    _ = self._slots[-1].views
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        version = None if self.latest is None else self.latest.version
        return f"<Store of {len(self._slots)} slots of {self.layout.size >> 20} MiB [version {version}]>"

    def _make(self) -> SlotWriter:
        return SlotWriter(self.manifest, self.layout, self._label)

    def take(self) -> SlotWriter:
        """Return a locked slot for the next version: the oldest without readers.

        Raises:
            MemoryError, OSError: as for the constructor.
        """
        if retired:
            free_retired()
        others = sorted((slot for slot in self._slots if slot is not self.latest), key=_age)
        taken = next((slot for slot in others if not slot.is_pinned and slot.lock()), None)
        grows = taken is None and len(self._slots) < self.most
        if not grows and self._before is (taken or others[0]):
            self._before = None
        if taken is None:
            taken = self._make()
            taken.lock()
            if grows:
                self._slots.append(taken)
            else:
                self._slots[self._slots.index(others[0])] = taken
                self._close(others[0])  # a failure here leaves the new slot in place
        return taken

    def register(self, slot: SlotWriter, device: torch.device) -> None:
        """Register a slot for copies by a GPU."""
        slot.register(self._registrar, device)

    def make_room(self, slot: SlotWriter, device: torch.device) -> bool:
        """True if a slot can be packed on that GPU. A failed attempt is not repeated."""
        if self._is_refused or self._device not in (None, device):
            return False
        if slot not in self._on_gpu:
            lacking = [each for each in self._slots if each not in self._on_gpu]
            made: list[DeviceLeaves] = []
            try:
                for _ in lacking:  # all or none: room for a single version is useless
                    made.append(DeviceLeaves(self._gpus, self.manifest, device))
            except Exception as error:
                for leaves in made:
                    leaves.free()
                self._is_refused = True
                logger.warning("weights of '%s' go by way of the CPU, not of %s: %s", self._label, device, error)
                return False
            for each, leaves in zip(lacking, made, strict=True):
                self._on_gpu[each], each.name_on_gpu = leaves, leaves.name
        self._device = device
        return True

    def pack(
        self,
        slot: SlotWriter,
        version: int,
        tensors: Sequence[torch.Tensor],
        *,
        extra: bytes = b"",
        copy: Copy = copy_tensors,
        on_gpu: bool = False,
        fill: Copy | None = None,
    ) -> SlotWriter:
        """Copy a version into a taken slot, in the transport dtypes, in one pass over the memory.

        Args:
            tensors: tensors in the order of the leaves.
            extra: packed values other than tensors.
            copy: copies the tensors to their places.
            on_gpu: pack into GPU memory, which has room.
            fill: copies the packed leaves into the slot; None leaves them on the GPU.

        Raises:
            ValueError: the version does not fit.
        """
        try:
            # May raise MemoryError: the views are created at first use.
            views = list((self._on_gpu[slot] if on_gpu else slot).views.values())
            slot.begin()
            copy(views, tensors)
            if on_gpu and fill is not None:
                self._fill(slot, fill)
            places = (ON_GPU | IN_SLOT if fill is not None else ON_GPU) if on_gpu else IN_SLOT
            slot.finish(version, extra, places)
            self._before, self.latest = self.latest, slot
        finally:
            slot.unlock()
        return slot

    def fill(self) -> None:
        """Copy the latest version from the GPU into its slot. Do not call this while another one is being packed.

        Raises:
            RuntimeError: the copy from the GPU failed.
        """
        latest = self.latest
        if latest is not None and not latest.is_in_slot:
            self._fill(latest, self._copy_settled)
            latest.filled()

    def _fill(self, slot: SlotWriter, copy: Copy) -> None:
        on_gpu = self._on_gpu[slot]
        slot.register(self._registrar, on_gpu.device)
        copy([slot.leaves], [on_gpu.memory])

    def withdraw(self, version: int) -> None:
        """Withdraw a version that may have been packed: the one before it becomes the latest again."""
        if self.latest is not None and self.latest.version == version:
            withdrawn, self.latest, self._before = self.latest, self._before, None
            withdrawn.begin()

    def receive(self, slot: SlotWriter) -> torch.Tensor:
        """Return the bytes of a taken slot, for the caller to fill and then call ``received``."""
        slot.begin()
        return slot.leaves

    def received(self, slot: SlotWriter, version: int, extra: bytes) -> SlotWriter:
        """Record that a slot holds a complete version."""
        try:
            slot.finish(version, extra, IN_SLOT | PUBLISHED)
            self._before, self.latest = self.latest, slot
        finally:
            slot.unlock()
        return slot

    def close(self) -> None:
        """Close all slots; readers keep theirs. Idempotent."""
        slots, self._slots, self.latest = self._slots, [], None
        for slot in slots:
            self._close(slot)

    def _close(self, slot: SlotWriter) -> None:
        try:
            if (leaves := self._on_gpu.pop(slot, None)) is not None:
                retire(slot.leave_gpu(), leaves)
        finally:
            slot.close()


def _age(slot: SlotWriter) -> tuple[bool, int]:
    """Sort key: slots without a version first, then older ones."""
    return slot.is_whole, slot.version
