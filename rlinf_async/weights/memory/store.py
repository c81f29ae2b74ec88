"""Slots of a sender: takes one for each version, packs, fills, compares and replaces it; leaves chosen by ``keys=``."""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Collection, Sequence
from typing import Any, Final

import torch

from rlinf_async.weights.memory.cuda import CUDA
from rlinf_async.weights.memory.device_leaves import RETIRED, DeviceLeaves
from rlinf_async.weights.memory.gpus import Gpus, Registrar, copy_settled
from rlinf_async.weights.memory.slot import SlotWriter, check_room, checksum_of
from rlinf_async.weights.memory.slot_book import SlotBook
from rlinf_async.weights.memory.slot_layout import IN_SLOT, ON_GPU, SlotLayout
from rlinf_async.weights.model.copying import Copy, copy_tensors
from rlinf_async.weights.model.delta import GPU_PIECE, Delta, encode_within
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.model.param_tree import name_of, path_of

logger = logging.getLogger(__name__)

_EVERY_LEAF: Final = None


class Store:
    """Room for some versions of one model; not for two threads at once, but for ``hold`` and ``let_go``.

    A slot that is still leased when its turn comes is left to its readers, and another piece of memory takes its place:
    a reader that is stopped holds nothing up.  The kernel frees what was left once its last reader lets go of it.

    Of a source on a GPU, the leaves of a version may lie there, in the slot, or in both places; ``fill`` brings them
    into the slot when a receiver needs them there.  Memory of the GPU is taken with the first version that lies there.

    Args:
        extra: bytes of what the model has beside its tensors at first.
        gpus: in the place of CUDA's.
        reserves: memory for all slots is taken now, and not of each when it is needed: weights may stay on a GPU.

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
    ) -> None:
        self.manifest = manifest
        self.extra = extra
        self.slots = slots
        self.layout = SlotLayout(manifest.nbytes, extra)
        self._label = label
        self._gpus = gpus
        self._registrar = Registrar(gpus, read_only=False)
        self._copy_settled: Copy = functools.partial(copy_settled, gpus)
        self._device: torch.device | None = None
        """The GPU on which versions lie."""
        self._is_refused = manifest.nbytes == 0
        self._book = SlotBook(slots, len(manifest.leaves))
        self._slots: list[SlotWriter] = []
        self._views: dict[SlotWriter, list[torch.Tensor]] = {}
        self._on_gpu: dict[SlotWriter, DeviceLeaves] = {}
        self._in_use = [0] * slots
        self._counting = threading.Lock()
        """Held where those counts change: what is sent is let go of in other threads."""
        if reserves:
            check_room(label, self.layout, slots)
        self._before: int | None = None
        """The slot with the version before the latest, as long as nothing else is in it."""
        try:
            for slot in range(slots):
                self._slots.append(self._make())
                if reserves:
                    self._places(slot, on_gpu=False)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        version = None if self.latest is None else self.latest.version
        return f"<Store of {len(self._slots)} slots of {self.layout.size >> 20} MiB [version {version}]>"

    def _make(self) -> SlotWriter:
        return SlotWriter(self.layout, self.manifest.digest, self._label)

    @property
    def latest(self) -> SlotWriter | None:
        """The slot with the latest version; it stays as it is until there is another."""
        return None if self._book.latest is None else self._slots[self._book.latest]

    def take(self) -> int:
        """A slot for the next version, claimed: it has to be packed, or given back.

        Raises:
            MemoryError, OSError: as the constructor.
        """
        RETIRED.sweep()
        candidates = self._book.candidates()
        for slot in candidates:
            if not self._in_use[slot] and self._slots[slot].claim():
                self._forget(slot)
                return slot
        slot = candidates[0]
        self._forget(slot)
        writer = self._make()
        self._close(self._slots[slot])
        with self._counting:
            self._slots[slot], self._in_use[slot] = writer, 0
        self._book.replace(slot)
        writer.claim()
        return slot

    def _forget(self, slot: int) -> None:
        if self._before == slot:
            self._before = None

    def writer(self, slot: int) -> SlotWriter:
        return self._slots[slot]

    def abandon(self, slot: int) -> None:
        """A slot that was taken, and may still be written to: it is replaced when its turn comes."""
        with self._counting:
            self._in_use[slot] += 1

    def give_back(self, slot: int) -> None:
        """A slot that was taken, and into which nothing is packed after all."""
        self._slots[slot].give_back()

    def register(self, slot: int, device: torch.device) -> None:
        """A GPU will copy to it."""
        self._slots[slot].register(self._registrar, device)

    def make_room(self, slot: int, device: torch.device) -> bool:
        """Whether a slot that was taken can be packed on that GPU.  What was tried once in vain is not tried again."""
        if self._is_refused or self._device not in (None, device):
            return False
        if self._slots[slot] not in self._on_gpu:
            lacking = [writer for writer in self._slots if writer not in self._on_gpu]
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
            for writer, leaves in zip(lacking, made, strict=True):
                self._on_gpu[writer], writer.name_on_gpu = leaves, leaves.name
        self._device = device
        return True

    def pack(
        self,
        slot: int,
        version: int,
        tensors: Sequence[torch.Tensor],
        given: Sequence[int] | None = _EVERY_LEAF,
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
        writer, latest = self._slots[slot], self._book.latest
        try:
            views = self._places(slot, on_gpu=on_gpu)  # for which there may be no memory
            if not (writer.is_on_gpu if on_gpu else writer.is_in_slot):
                self._book.replace(slot)  # what is known of it is in the other place
            missing = self._book.missing(slot, given)
            if missing and not on_gpu:
                self.fill()
            self._book.begin(slot)
            writer.begin()
            if extra is None:
                extra = b"" if latest is None else self._slots[latest].extra
            copy(views if given is None else [views[leaf] for leaf in given], tensors)
            if missing and latest is not None:
                before = self._places(latest, on_gpu=on_gpu and self._slots[latest].is_on_gpu)
                copy_missing = self._copy_settled if on_gpu else copy_tensors
                copy_missing([views[leaf] for leaf in missing], [before[leaf] for leaf in missing])
            if on_gpu and fill is not None:
                self._fill(writer, fill)
            checksum = checksum_of(writer.leaves, extra) if with_checksum else 0
            places = (ON_GPU | IN_SLOT if fill is not None else ON_GPU) if on_gpu else IN_SLOT
            writer.finish(version, extra, checksum, places)
            self._book.finish(slot, version, given)
            self._before = latest
        finally:
            writer.give_back()
        return writer

    def _places(self, slot: int, *, on_gpu: bool) -> list[torch.Tensor]:
        writer = self._slots[slot]
        if on_gpu and writer in self._on_gpu:
            return self._on_gpu[writer].views
        if writer not in self._views:
            views = self.manifest.views(writer.leaves)
            self._views[writer] = [views[leaf.path] for leaf in self.manifest.leaves]
        return self._views[writer]

    def fill(self) -> None:
        """The latest version is in its slot too from here on; not while another one is packed.

        Raises:
            RuntimeError: the GPU does not give it.
        """
        latest = self.latest
        if latest is not None and not latest.is_in_slot:
            self._fill(latest, self._copy_settled)
            latest.filled()

    def _fill(self, writer: SlotWriter, copy: Copy) -> None:
        on_gpu = self._on_gpu[writer]
        writer.register(self._registrar, on_gpu.device)
        copy([writer.leaves], [on_gpu.memory])

    def withdraw(self, version: int) -> None:
        """A version that may have been packed is not published: the one before it is the latest again."""
        latest = self.latest
        if latest is not None and latest.version == version:
            before, self._before = self._before, None
            self._book.withdraw(before)
            latest.begin()

    def receive(self, slot: int) -> torch.Tensor:
        """The bytes of a slot that was taken, for the caller to fill; then ``received``."""
        self._book.begin(slot)
        self._slots[slot].begin()
        return self._slots[slot].leaves

    def patch(self, slot: int, delta: Delta) -> None:
        """Makes a slot what the latest version becomes by a delta.

        Raises:
            WeightMismatch: it is no delta of these weights.
        """
        latest = self.latest
        assert latest is not None
        self.receive(slot).copy_(latest.leaves)
        delta.apply(self.manifest, self._slots[slot].leaves)

    def delta(self, most: float = math.inf) -> tuple[int, Delta | None] | None:
        """What has changed in the latest version, and since which; None where that one is not there any more.

        Args:
            most: bytes; of more, it is only said that it is more.
        """
        latest = self.latest
        if latest is None or self._before is None:
            return None
        before = self._slots[self._before]
        if before.is_on_gpu and latest.is_on_gpu:
            both = self._on_gpu[before].memory, self._on_gpu[latest].memory
            with self._gpus.beside(self._on_gpu[latest].device):  # the trainer computes already
                found = encode_within(most, self.manifest, *both, GPU_PIECE)
                return before.version, None if found is None else Delta(found.head, found.body.cpu())
        if not (before.is_in_slot and latest.is_in_slot):
            return None
        return before.version, encode_within(most, self.manifest, before.leaves, latest.leaves)

    def received(self, slot: int, version: int, extra: bytes, checksum: int) -> SlotWriter:
        """A slot holds a whole version, with the checksum that it had where it came from."""
        writer = self._slots[slot]
        try:
            writer.finish(version, extra, checksum)
            self._book.finish(slot, version, _EVERY_LEAF)
        finally:
            writer.give_back()
        return writer

    def hold(self, writer: SlotWriter) -> None:
        """It is being sent from: no other version comes into it until ``let_go``."""
        with self._counting:
            self._in_use[self._slots.index(writer)] += 1

    def let_go(self, writer: SlotWriter) -> None:
        with self._counting:
            if writer in self._slots:
                self._in_use[self._slots.index(writer)] -= 1

    def close(self) -> None:
        """Lets go of the memory; readers go on with theirs.  Idempotent."""
        slots, self._slots = self._slots, []
        self._book.latest = None
        for writer in slots:
            self._close(writer)

    def _close(self, writer: SlotWriter) -> None:
        self._views.pop(writer, None)
        try:
            if (leaves := self._on_gpu.pop(writer, None)) is not None:
                RETIRED.add(writer.leave_gpu(), leaves)
        finally:
            writer.close()


def select_leaves(manifest: Manifest, keys: Collection[Any] | None) -> list[int] | None:
    """The indices of the leaves that ``keys`` names: paths, or names with dots; a prefix names all below it.

    A tensor that is tied is named by each of its names.

    Raises:
        KeyError: a key names nothing.
    """
    if keys is None:
        return None
    wanted = [path_of(key) if isinstance(key, str) else tuple(key) for key in keys]
    index_of = {leaf.path: index for index, leaf in enumerate(manifest.leaves)}
    index_of |= {path: index_of[owner] for path, owner in manifest.aliases.items()}
    found: set[int] = set()
    for path in wanted:
        if path in index_of:  # nothing is below a tensor
            found.add(index_of[path])
            continue
        indices = [index for known, index in index_of.items() if known[: len(path)] == path]
        if not indices:
            raise KeyError(f"keys= names {name_of(path)!r}, which the weights do not have")
        found.update(indices)
    return sorted(found)
