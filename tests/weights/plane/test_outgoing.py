"""A version on its way to other machines."""

from __future__ import annotations

import torch

from rlinf_async.weights import Manifest, ParamTree
from rlinf_async.weights.plane.host_memory import Outgoing
from tests._support.weight_parts import Store


def test_what_is_being_sent_stays_as_it_is_although_its_slot_is_replaced() -> None:
    store = Store(Manifest.of(ParamTree.of({"w": torch.zeros(64, dtype=torch.uint8)})), 2)
    sent = None
    for version in range(1, 5):
        slot = store.pack(store.take(), version, [torch.full((64,), version, dtype=torch.uint8)])
        if version == 1:
            sent = Outgoing(1, store, slot, 1.0).publish()
            sent.hold()
    assert sent is not None
    sent.hold()
    assert set(sent.body[:64].tolist()) == {1}
    assert not sent.is_current
    store.close()
