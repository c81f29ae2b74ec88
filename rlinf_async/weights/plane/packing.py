"""``Packing``: packs a version into a slot, from the CPU, from a GPU, or from many ranks' shards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch

from rlinf_async.weights.memory.gpus import Gpus, Marks, copy_settled
from rlinf_async.weights.memory.slot import SlotWriter
from rlinf_async.weights.memory.store import Store
from rlinf_async.weights.model.copying import Copy, copy_in_order, copy_tensors
from rlinf_async.weights.model.gather_calls import GatherCall
from rlinf_async.weights.model.param_tree import ParamTree
from rlinf_async.weights.model.source import WeightSource, is_streamed
from rlinf_async.weights.plane.verifying import Verifying


class Readers(Protocol):
    """The receivers of a version; ``ReceiverTable`` implements this interface."""

    def begin(self, version: int, names: Sequence[Hashable], store: Store, writer: SlotWriter) -> bool: ...

    def packed(self, version: int, nbytes: int) -> None: ...

    def demand(self, gpu: str) -> tuple[bool, bool]: ...


class Packing:
    """A packer that copies one model's versions into slots.

    Args:
        taker: extractor of the tensors.
        tree: the first version's tensors.
        store: the slots; None if another rank owns them.
        verify: as for ``Publisher``.

    Attributes:
        verifying: comparison with receivers' tensors; None if not requested.
    """

    def __init__(
        self,
        taker: WeightSource,
        tree: ParamTree,
        store: Store | None,
        readers: Readers,
        gpus: Gpus,
        *,
        verify: str,
    ) -> None:
        self.taker = taker
        self.store = store
        self._readers = readers
        self._gpus = gpus
        self.verifying = Verifying(store) if store is not None and verify == "sha256" else None
        self._places = gpus.places(tree.tensors.values())

    @property
    def nbytes(self) -> int | None:
        """Size in bytes of the copy of ``pack``; None if it waits for a GPU, other ranks or a comparison."""
        # A version that is to be verified must be pinned before the next one is packed, and pinning runs in the thread.
        waits = self.taker.is_sharded or self._places or self.verifying is not None
        return None if waits else self.taker.manifest.nbytes

    def marks(self) -> Marks:
        """Return marks of the calling thread's streams, in which the weights were computed."""
        return self._gpus.mark(self._places) if self._places else {}

    def pack(
        self,
        source: Any,
        version: int,
        names: Sequence[Hashable],
        marks: Marks,
        call: GatherCall | None = None,
    ) -> SlotWriter | None:
        """Pack a version; return None if another rank packs it.

        Args:
            names: names of the recipients.
            call: the counted call, by which other ranks recognise this version.
        """
        if self.taker.is_sharded and self._places:
            self._gpus.follow(marks)  # shards are combined and sent in this thread's streams
        store, streams = self.store, is_streamed(source)
        tensors, extra = ([], b"") if streams else self.taker.take(source)
        if store is None:
            self.taker.gather((), tensors, call)
            for device in self._places:
                self._gpus.settle(device)  # sends were only enqueued, and the source may change after this
            return None
        slot = store.take()
        how: dict[str, Any] = {"extra": extra}
        if streams:
            how["copy"] = lambda targets, _: self.taker.stream(source, targets)
        elif self.taker.is_sharded:
            for device in self._places:
                store.register(slot, device)
            how["copy"] = functools.partial(self.taker.gather, call=call)
        else:
            places = self._gpus.places(tensors)
            at_once = self._readers.begin(version, names, store, slot)
            if places:
                how |= self._from_gpu(store, slot, version, tensors, min(places, key=str), marks, at_once=at_once)
            elif at_once:
                how["copy"] = self._in_order(version, self._ends, copy_tensors)
        return store.pack(slot, version, tensors, **how)

    def _from_gpu(
        self,
        store: Store,
        slot: SlotWriter,
        version: int,
        tensors: Sequence[torch.Tensor],
        device: torch.device,
        marks: Marks,
        *,
        at_once: bool,
    ) -> dict[str, Any]:
        """Return the arguments that pack a version on the GPU if all its tensors and a receiver's views are on it."""
        copy: Copy = functools.partial(self._gpus.copy, after=marks)
        gpu = self._gpus.uuid(device) if self._gpus.only_place(tensors) == device else ""
        is_read_there, is_read_here = self._readers.demand(gpu) if gpu else (False, True)
        if is_read_there and store.make_room(slot, device):
            fill: Copy | None = functools.partial(copy_settled, self._gpus) if is_read_here or at_once else None
            if fill is not None and at_once:
                fill = self._in_order(version, [store.manifest.nbytes], fill)
            return {"copy": copy, "on_gpu": True, "fill": fill}
        store.register(slot, device)
        return {"copy": self._in_order(version, self._ends, copy) if at_once else copy}

    @property
    def _ends(self) -> list[int]:
        return [leaf.offset + leaf.nbytes for leaf in self.taker.manifest.leaves]

    def _in_order(self, version: int, ends: Sequence[int], copy: Copy) -> Copy:
        packed: Callable[[int], None] = functools.partial(self._readers.packed, version)
        return functools.partial(copy_in_order, ends=ends, copied=packed, copy=copy)
