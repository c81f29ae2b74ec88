"""Slots of a sender: takes one for each version, packs, fills, compares and replaces it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from rlinf_async._core.own_logger import own_logger
from rlinf_async.weights.memory.cuda import CUDA
from rlinf_async.weights.memory.device_leaves import DeviceLeaves, free_retired, retire
from rlinf_async.weights.memory.gpus import Gpus, Registrar, copy_settled
from rlinf_async.weights.memory.slot import IN_SLOT, ON_GPU, PUBLISHED, SlotLayout, SlotWriter
from rlinf_async.weights.model.copying import Copy, copy_tensors
from rlinf_async.weights.model.delta import GPU_PIECE, Delta, encode_within
from rlinf_async.weights.model.digests import checksum_of
from rlinf_async.weights.model.manifest import Manifest

logger = own_logger(__name__)


class Store:
    """Room for some versions of one model; not for two threads at once.

    A slot that is still leased when its turn comes is left to its readers, and another piece of memory takes its place:
    a reader that is stopped holds nothing up.  The kernel frees what was left once its last reader lets go of it.

    The leaves of a version from a GPU may lie there, in the slot, or in both places; ``fill`` brings them into the slot
    when a receiver needs them there.  Memory of the GPU is taken with the first version that lies there.

    Args:
        slots: two or more: the latest version stays whole until there is another.
        extra: bytes of what the model has beside its tensors at first.
        gpus: in the place of CUDA's.
        reserves: memory for all slots is taken now, and not of each when it is needed: weights may stay on a GPU.
        most: slots that there may be; above ``slots`` one is added when all others are read or held.

    Attributes:
        latest: the slot with the latest version.

    Raises:
        MemoryError, OSError: there is not enough memory, or no file descriptor, for it.
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
        """The GPU on which versions lie."""
        self._is_refused = manifest.nbytes == 0
        self._changed = [0] * len(manifest.leaves)
        """By leaf, the version in which its value was new."""
        self._slots: list[SlotWriter] = []
        self._on_gpu: dict[SlotWriter, DeviceLeaves] = {}
        self._before: SlotWriter | None = None
        """The slot with the version before the latest, as long as nothing else is in it."""
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
        """A slot for the next version, claimed: the one with the oldest that nobody reads.

        Raises:
            MemoryError, OSError: as the constructor.
        """
        free_retired()
        others = sorted((slot for slot in self._slots if slot is not self.latest), key=_age)
        taken = next((slot for slot in others if not slot.is_held and slot.claim()), None)
        grows = taken is None and len(self._slots) < self.most
        if not grows and self._before is (taken or others[0]):
            self._before = None
        if taken is None:
            taken = self._make()
            taken.claim()
            if grows:
                self._slots.append(taken)
            else:
                self._slots[self._slots.index(others[0])] = taken
                self._close(others[0])  # which may fail, and is in nobody's way then
        return taken

    def register(self, slot: SlotWriter, device: torch.device) -> None:
        """A GPU will copy to it."""
        slot.register(self._registrar, device)

    def make_room(self, slot: SlotWriter, device: torch.device) -> bool:
        """Whether a slot that was taken can be packed on that GPU.  What was tried once in vain is not tried again."""
        if self._is_refused or self._device not in (None, device):
            return False
        if slot not in self._on_gpu:
            lacking = [each for each in self._slots if each not in self._on_gpu]
            made: list[DeviceLeaves] = []
            try:
                for _ in lacking:  # all at once: room for one version alone is of no use
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
        given: Sequence[int] | None = None,
        *,
        extra: bytes | None = None,
        with_checksum: bool = False,
        copy: Copy = copy_tensors,
        on_gpu: bool = False,
        fill: Copy | None = None,
    ) -> SlotWriter:
        """Copies a version into a slot that was taken, in the dtypes in which it travels; one pass over the memory.

        Args:
            tensors: in the order of ``given``.
            given: indices of the leaves that are new; the others are those of the latest version.  None: all.
            extra: what the model has beside its tensors; None: as in the latest version.
            copy: what is called with their places and these tensors.
            on_gpu: their places are on the GPU, for which there is room.
            fill: what copies all that is there into the slot, if it should.

        Raises:
            ValueError: it does not fit.
        """
        latest = self.latest
        try:
            views = self._views(slot, on_gpu=on_gpu)  # for which there may be no memory
            missing = self._missing(slot, given, on_gpu=on_gpu)
            if missing and not on_gpu:
                self.fill()
            slot.begin()
            if extra is None:
                extra = b"" if latest is None else latest.extra
            copy(views if given is None else [views[leaf] for leaf in given], tensors)
            if missing and latest is not None:
                before = self._views(latest, on_gpu=on_gpu and latest.is_on_gpu)
                copy_missing = self._copy_settled if on_gpu else copy_tensors
                copy_missing([views[leaf] for leaf in missing], [before[leaf] for leaf in missing])
            if on_gpu and fill is not None:
                self._fill(slot, fill)
            checksum = checksum_of(slot.leaves, extra) if with_checksum else 0
            places = (ON_GPU | IN_SLOT if fill is not None else ON_GPU) if on_gpu else IN_SLOT
            slot.finish(version, extra, checksum, places)
            self._finished(slot, given)
        finally:
            slot.give_back()
        return slot

    def _views(self, slot: SlotWriter, *, on_gpu: bool) -> list[torch.Tensor]:
        return list((self._on_gpu[slot] if on_gpu else slot).views.values())

    def _missing(self, slot: SlotWriter, given: Sequence[int] | None, *, on_gpu: bool) -> list[int]:
        """Leaves that a slot has to get from the latest version, as far as it has not got them already.

        Raises:
            ValueError: there is no version to take them from.
        """
        if given is None:
            return []
        rest = sorted(set(range(len(self._changed))) - set(given))
        if rest and self.latest is None:
            raise ValueError("the first version has to have every leaf: there is nothing to take the others from")
        is_there = slot.is_on_gpu if on_gpu else slot.is_in_slot  # and not only in the other place
        held = slot.held if is_there else None
        return rest if held is None else [leaf for leaf in rest if held[leaf] != self._changed[leaf]]

    def _finished(self, slot: SlotWriter, given: Sequence[int] | None) -> None:
        """A slot holds a new version, with the given leaves new."""
        version = slot.version
        for leaf in range(len(self._changed)) if given is None else given:
            self._changed[leaf] = version
        slot.held = self._changed.copy()
        self._before, self.latest = self.latest, slot

    def fill(self) -> None:
        """The latest version is in its slot too from here on; not while another one is packed.

        Raises:
            RuntimeError: the GPU does not give it.
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
        """A version that may have been packed is not published: the one before it is the latest again."""
        if self.latest is not None and self.latest.version == version:
            withdrawn, self.latest, self._before = self.latest, self._before, None
            withdrawn.begin()

    def receive(self, slot: SlotWriter) -> torch.Tensor:
        """The bytes of a slot that was taken, for the caller to fill; then ``received``."""
        slot.begin()
        return slot.leaves

    def patch(self, slot: SlotWriter, delta: Delta) -> None:
        """Makes a slot what the latest version becomes by a delta.

        Raises:
            WeightMismatch: it is no delta of these weights.
        """
        assert self.latest is not None
        self.receive(slot).copy_(self.latest.leaves)
        delta.apply(self.manifest, slot.leaves)

    def delta(self, most: float = math.inf) -> tuple[int, Delta | None] | None:
        """What has changed in the latest version, and since which; None where that one is not there any more.

        Args:
            most: bytes; of more, it is only said that it is more.
        """
        latest, before = self.latest, self._before
        if latest is None or before is None:
            return None
        if before.is_on_gpu and latest.is_on_gpu:
            both = self._on_gpu[before].memory, self._on_gpu[latest].memory
            with self._gpus.beside(self._on_gpu[latest].device):  # the trainer computes already
                found = encode_within(most, self.manifest, *both, GPU_PIECE)
                return before.version, None if found is None else Delta(found.head, found.body.cpu())
        if not (before.is_in_slot and latest.is_in_slot):
            return None
        return before.version, encode_within(most, self.manifest, before.leaves, latest.leaves)

    def received(self, slot: SlotWriter, version: int, extra: bytes, checksum: int) -> SlotWriter:
        """A slot holds a whole version, with the checksum that it had where it came from."""
        try:
            slot.finish(version, extra, checksum, IN_SLOT | PUBLISHED)
            self._finished(slot, None)
        finally:
            slot.give_back()
        return slot

    def close(self) -> None:
        """Lets go of the memory; readers go on with theirs.  Idempotent."""
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
    """Sorts slots without a version first, then older ones."""
    return slot.held is not None, slot.version
