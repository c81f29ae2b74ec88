"""``Store``, which takes, packs, fills and replaces a sender's slots."""

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
    """Memory for several versions of one model; not thread-safe.

    A slot that is still leased when its turn comes is left to its readers and replaced with new memory, so a stopped
    reader does not delay any version. The kernel frees the old slot once its last reader has closed it.

    A version from a GPU may have its leaves on the GPU, in the slot, or in both; ``fill`` copies them into the slot
    when a receiver needs them there. GPU memory is allocated for the first version that uses it.

    Args:
        slots: number of slots, at least two, because the latest version must stay complete until the next one is.
        extra: initial size in bytes of the values other than tensors.
        gpus: interface to the GPUs.
        reserves: allocate memory for all slots now instead of at first use; weights on a GPU may never need it.
        most: limit on slots; above ``slots``, a slot is added when all others are being read or pinned.

    Attributes:
        latest: slot with the latest version.

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
        """Slot with the second-latest version, until it is overwritten."""
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
        """Return a locked slot for the next version: the oldest slot without readers.

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
                self._close(others[0])  # the new slot stays even if this fails
        return taken

    def register(self, slot: SlotWriter, device: torch.device) -> None:
        """Register a slot for copies by a GPU."""
        slot.register(self._registrar, device)

    def make_room(self, slot: SlotWriter, device: torch.device) -> bool:
        """True if a slot can be packed on that GPU; allocate memory there at first use. After a failure, GPUs are not
        tried again."""
        if self._is_refused or self._device not in (None, device):
            return False
        if slot not in self._on_gpu:
            lacking = [each for each in self._slots if each not in self._on_gpu]
            made: list[DeviceLeaves] = []
            try:
                for _ in lacking:  # all or none, because room for a single version is useless
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
            tensors: tensors in the leaves' order.
            extra: packed values other than tensors.
            copy: function that copies the tensors to their places.
            on_gpu: pack into the slot's GPU memory, which ``make_room`` has allocated.
            fill: function that copies the packed leaves into the slot; None leaves them only on the GPU.

        Raises:
            ValueError: the version does not fit.
        """
        try:
            # Creating the views, at first use, may raise MemoryError.
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
        """Copy the latest version from the GPU into its slot. Do not call this while another version is being packed.

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
        """Withdraw a version that may have been packed, so that its predecessor becomes the latest again."""
        if self.latest is not None and self.latest.version == version:
            withdrawn, self.latest, self._before = self.latest, self._before, None
            withdrawn.begin()

    def receive(self, slot: SlotWriter) -> torch.Tensor:
        """Return a taken slot's bytes, for the caller to fill before calling ``received``."""
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
        """Close all slots; readers keep the slots that they use. Idempotent."""
        slots, self._slots, self.latest = self._slots, [], None
        for slot in slots:
            self._close(slot)

    def _close(self, slot: SlotWriter) -> None:
        if (leaves := self._on_gpu.pop(slot, None)) is None:
            slot.close()
        else:
            retire(slot.leave_gpu(), leaves)


def _age(slot: SlotWriter) -> tuple[bool, int]:
    """Sort key: slots without a version first, then older versions."""
    return slot.is_whole, slot.version
