"""How a version of a source gets into a slot, from a CPU, a GPU or many ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from rlinf_async.weights.comparing import Comparing
from rlinf_async.weights.copying import Copy, copy_in_order, copy_tensors
from rlinf_async.weights.gpus import Gpus, Marks
from rlinf_async.weights.param_tree import ParamTree
from rlinf_async.weights.registered import Registrar
from rlinf_async.weights.slab import SlotWriter
from rlinf_async.weights.source import Source
from rlinf_async.weights.store import Store


class Readers(Protocol):
    """Who is waiting for it, as ``Outlets``."""

    def begin(self, version: int, names: Sequence[Hashable], store: Store, writer: SlotWriter) -> bool: ...

    def packed(self, version: int, nbytes: int) -> None: ...


class Packing:
    """
    Args:
        taker: gets the tensors.
        tree: the first of them.
        store: has the slots; None where another rank has.
        comparing: what goes to other machines.
        with_checksum: over everything.
    """

    def __init__(
        self,
        taker: Source,
        tree: ParamTree,
        store: Store | None,
        readers: Readers,
        comparing: Comparing,
        gpus: Gpus,
        *,
        with_checksum: bool,
    ) -> None:
        self._taker = taker
        self._store = store
        self._readers = readers
        self._comparing = comparing
        self._gpus = gpus
        self._with_checksum = with_checksum
        self._registrar = Registrar(gpus, read_only=False)
        self._places = gpus.places(tree.tensors.values())

    @property
    def nbytes(self) -> int | None:
        """That ``pack`` copies; None where it waits for a GPU, or for other ranks."""
        return None if self._taker.is_sharded or self._places else self._taker.manifest.nbytes

    def marks(self) -> Marks:
        """In the thread that has made the weights: how far their GPUs have come there."""
        return self._gpus.mark(self._places)

    def pack(
        self, source: Any, version: int, given: Sequence[int] | None, names: Sequence[Hashable], marks: Marks
    ) -> SlotWriter | None:
        """Packs a version; None where that is done on another rank.

        Args:
            given: indices of the leaves that are new; None: all.
            names: of the readers.
        """
        tensors, extra = self._taker.take(source, given)
        store = self._store
        if store is None:
            self._taker.gather((), tensors, given)
            return None
        slot = store.take()
        copy: Copy = copy_tensors
        if self._taker.is_sharded:
            copy = functools.partial(self._taker.gather, given=given)
        else:
            if places := self._gpus.places(tensors):
                store.writer(slot).register(self._registrar, min(places, key=str))
                copy = functools.partial(self._gpus.copy, after=marks)
            if given is None and self._leaves_at_once(version, names, store, slot):
                copy = self._in_order(version, copy)
        return store.pack(slot, version, tensors, given, extra=extra, with_checksum=self._with_checksum, copy=copy)

    def _leaves_at_once(self, version: int, names: Sequence[Hashable], store: Store, slot: int) -> bool:
        """Whether it goes to other machines while it is packed; what has changed is known only afterwards."""
        return not self._comparing.is_due(version) and self._readers.begin(version, names, store, store.writer(slot))

    def _in_order(self, version: int, copy: Copy) -> Copy:
        packed: Callable[[int], None] = functools.partial(self._readers.packed, version)
        ends = [leaf.offset + leaf.nbytes for leaf in self._taker.manifest.leaves]
        return functools.partial(copy_in_order, ends=ends, copied=packed, copy=copy)
