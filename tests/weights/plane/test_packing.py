"""Choice of the memory that a GPU's version is packed into, with a stand-in for CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from rlinf_async.weights import ParamTree
from rlinf_async.weights.model.source import WeightSource
from rlinf_async.weights.plane.packing import Packing
from tests._support.fake_gpus import GPU, FakeGpus, NoGpus
from tests._support.weight_parts import IN_SLOT, ON_GPU, SlotWriter, Store

MiB = 1 << 20


class Readers:
    """Says who reads, and hears how far it is."""

    def __init__(self, *, there: bool, here: bool, far: bool) -> None:
        self._demand = there, here
        self._far = far
        self.heard: list[tuple[int, bool]] = []
        self._writer: SlotWriter | None = None

    def begin(self, version: int, names: Any, store: Store, writer: SlotWriter) -> bool:
        self._writer = writer
        return self._far

    def packed(self, version: int, nbytes: int) -> None:
        """With whether all of that is in the slot."""
        assert self._writer is not None
        self.heard.append((nbytes, bool((self._writer.leaves[:nbytes].view(torch.float32) == version).all())))

    def demand(self, gpu: str) -> tuple[bool, bool]:
        assert gpu == "one GPU"
        return self._demand


@contextmanager
def packing(gpus: FakeGpus, source: Any, readers: Readers) -> Iterator[tuple[Packing, Store]]:
    tree = ParamTree.of(source)
    taker = WeightSource(tree, "all", None)
    store = Store(taker.manifest, 2, gpus=gpus)
    yield Packing(taker, tree, store, readers, gpus, verify="off"), store
    store.close()
    assert (gpus.room, gpus.registered) == ({}, {})


@pytest.mark.parametrize(
    ("there", "here", "far", "places", "ways"),
    [
        (True, False, False, ON_GPU, ["D2D"]),
        (True, True, False, ON_GPU | IN_SLOT, ["D2D", "D2H"]),
        (True, True, True, ON_GPU | IN_SLOT, ["D2D", "D2H", "D2H", "D2H"]),
        (False, True, False, IN_SLOT, ["D2H"]),
        (False, True, True, IN_SLOT, ["D2H", "D2H", "D2H"]),
        (False, False, False, IN_SLOT, ["D2H"]),
    ],
)
def test_it_is_packed_where_it_is_read_and_leaves_piece_by_piece(
    there: bool, here: bool, far: bool, places: int, ways: list[str]
) -> None:
    gpus, readers = FakeGpus(), Readers(there=there, here=here, far=far)
    source = gpus.put({"a": torch.full((10 * MiB,), 1.0)})
    with packing(gpus, source, readers) as (it, _):
        assert it.nbytes is None, "it waits for the GPU"
        writer = it.pack(source, 1, (), it.marks())
        assert writer is not None
        assert writer._header.places == places
        assert [way for way, _ in gpus.done("copy")] == ways
        assert readers.heard == ([(16 * MiB, True), (32 * MiB, True), (40 * MiB, True)] if far else [])


class Sharded(WeightSource):
    """Says that every rank has a part, and when these were put together."""

    def __init__(self, gpus: FakeGpus, tree: ParamTree) -> None:
        super().__init__(tree, "all", None)
        self.is_sharded = True
        self._gpus = gpus

    def gather(self, targets: Any, tensors: Any, call: Any = None) -> None:
        self._gpus.calls.append(("gather", len(targets)))


@pytest.mark.parametrize("gathers_here", [True, False])
def test_shards_are_put_together_once_they_are_written_and_may_change_once_they_are_sent(gathers_here: bool) -> None:
    gpus, readers = FakeGpus(), Readers(there=False, here=True, far=False)
    tree = ParamTree.of(gpus.put({"a": torch.full((3,), 1.0)}))
    taker = Sharded(gpus, tree)
    store = Store(taker.manifest, 2, gpus=gpus) if gathers_here else None
    it = Packing(taker, tree, store, readers, gpus, verify="off")
    it.pack(tree, 1, (), it.marks())
    written = ("follow", {GPU: "mark"})
    if store is None:
        assert gpus.calls == [written, ("gather", 0), ("settle",)]
    else:
        assert gpus.calls == [written, ("register",), ("gather", 1)]
        store.close()


def test_shards_of_the_cpu_ask_nothing_of_cuda() -> None:
    tree = ParamTree.of({"a": torch.full((3,), 1.0)})
    gpus: Any = NoGpus()
    taker = Sharded(FakeGpus(), tree)
    it = Packing(taker, tree, None, Readers(there=False, here=True, far=False), gpus, verify="off")
    assert it.pack(tree, 1, (), it.marks()) is None


@pytest.mark.parametrize("why", ["a tensor elsewhere", "the switch"])
def test_what_cannot_be_read_there_as_a_whole_is_packed_in_the_slot(why: str) -> None:
    gpus = FakeGpus(name="" if why == "the switch" else "one GPU")
    readers = Readers(there=True, here=False, far=False)
    source = gpus.put({"a": torch.full((3,), 1.0)})
    if why == "a tensor elsewhere":
        source["b"] = torch.full((3,), 1.0)
    with packing(gpus, source, readers) as (it, _):
        writer = it.pack(source, 1, (), it.marks())
        assert writer is not None
        assert writer._header.places == IN_SLOT
        assert gpus.done("copy") == [["D2H" if why != "a tensor elsewhere" else "D2H+H2H", {GPU: "mark"}]]
        assert gpus.done("allocate") == []
