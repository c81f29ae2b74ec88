"""Where a version of weights on a GPU is packed, by who reads it, with a stand-in for CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from rlinf_async.weights.comparing import Comparing
from rlinf_async.weights.packing import Packing
from rlinf_async.weights.param_tree import ParamTree
from rlinf_async.weights.slab import SlotWriter
from rlinf_async.weights.slab_layout import IN_SLOT, ON_GPU
from rlinf_async.weights.source import Source
from rlinf_async.weights.store import Store
from tests.weights.gpus import GPU, FakeGpus

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
def packing(
    gpus: FakeGpus, source: Any, readers: Readers, *, with_checksum: bool = False
) -> Iterator[tuple[Packing, Store]]:
    tree = ParamTree.of(source)
    taker = Source(tree, "all", None)
    store = Store(taker.manifest, 2, gpus=gpus)
    yield (
        Packing(taker, tree, store, readers, Comparing("off", "it"), gpus, with_checksum=with_checksum),
        store,
    )
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
        writer = it.pack(source, 1, None, (), it.marks())
        assert writer is not None
        assert writer._header.places == places
        assert [way for way, _ in gpus.done("copy")] == ways
        assert readers.heard == ([(16 * MiB, True), (32 * MiB, True), (40 * MiB, True)] if far else [])


@pytest.mark.parametrize("why", ["a checksum", "a tensor elsewhere", "the switch"])
def test_what_cannot_be_read_there_as_a_whole_is_packed_in_the_slot(why: str) -> None:
    gpus = FakeGpus(name="" if why == "the switch" else "one GPU")
    readers = Readers(there=True, here=False, far=False)
    source = gpus.put({"a": torch.full((3,), 1.0)})
    if why == "a tensor elsewhere":
        source["b"] = torch.full((3,), 1.0)
    with packing(gpus, source, readers, with_checksum=why == "a checksum") as (it, _):
        writer = it.pack(source, 1, None, (), it.marks())
        assert writer is not None
        assert writer._header.places == IN_SLOT
        assert gpus.done("copy") == [["D2H" if why != "a tensor elsewhere" else "D2H+H2H", {GPU: "mark"}]]
        assert gpus.done("allocate") == []
