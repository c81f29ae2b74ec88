"""The shared-memory scheme's own weights: what was registered, and what was sent last."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rlinf_async import SharedMemTransport, SharedMemWeightSyncScheme
from tests.weights.ends import Tied, both


@pytest.mark.parametrize("strategy", ["state_dict", "tensordict"])
async def test_what_was_sent_last_is_shown_in_the_memory_that_workers_read(strategy: str) -> None:
    async with both("shared memory", apply="map", strategy=strategy) as ends:
        scheme = ends.schemes[0]
        assert scheme.policy_weights == {}
        for value in (1.0, 2.0, 3.0):
            await ends.deliver(Tied(value))
            shown = scheme.policy_weights["policy"]
            flat: Any = shown if strategy == "state_dict" else shown.flatten_keys(".")
            assert {name: set(tensor.flatten().tolist()) for name, tensor in flat.items()} == {
                name: {value} for name in Tied().state_dict()
            }
            slot = scheme.get_sender()._sending.made._store.latest
            assert flat["head.weight"].data_ptr() == flat["layers.0.weight"].data_ptr()
            assert flat["steps"].data_ptr() == slot.views["steps",].data_ptr(), "no copy of its own"


def test_without_workers_it_is_shown_too() -> None:
    scheme = SharedMemWeightSyncScheme(strategy="state_dict")
    scheme.init_on_sender("policy", pipes=[], source_model=Tied(1.0))
    assert scheme.get_sender().send().version == 1
    assert set(scheme.policy_weights["policy"]["steps"].tolist()) == {1.0}
    scheme.close()


async def test_a_model_that_is_not_registered_is_refused_where_it_has_to_be() -> None:
    async with both("shared memory", auto_register=False) as ends:
        with pytest.raises(KeyError, match="'policy' not registered"):
            await ends.sender.send()
        ends.schemes[0].register_shared_weights("policy", TensorDict({"w": torch.zeros(2)}))
        await ends.deliver()
        assert ends.sees == {1.0}


async def test_a_transport_by_itself_writes_into_what_is_registered_and_nothing_that_does_not_fit() -> None:
    transport = SharedMemTransport()
    await transport.send_weights("policy", {"w": torch.ones(2)})
    held = transport.registered["policy"]
    await transport.send_weights("policy", {"w": torch.full((2,), 2.0)})
    assert held["w"].tolist() == [2.0, 2.0]
    for wrong in ({"w": torch.ones(3)}, {"v": torch.ones(2)}):
        with pytest.raises(KeyError, match="Error updating destination"):
            transport.send_weights("policy", wrong)
    with pytest.raises(KeyError, match="not registered"):
        SharedMemTransport(auto_register=False).send_weights("policy", {"w": torch.ones(2)})
    assert held["w"].tolist() == [2.0, 2.0]
