"""Weights sent by calls: copied before the send returns, one call after the other."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rlinf_async import RPCWeightSyncScheme, WorkerActorTransport, WorkerTransport, WorkerWeightSyncScheme
from rlinf_async.errors import ConfigError
from tests.weights.scripts import run


class Late:
    """Looks at the weights long after it was called."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.weights: Any = None

    async def update_policy_weights_(self, policy_or_weights: Any) -> None:
        await self.goes_on.wait()
        self.weights = policy_or_weights

    async def _update_weights_state_dict(self, state_dict: Any) -> None:
        await self.update_policy_weights_(state_dict)


async def test_a_step_after_send_async_is_not_seen_by_an_object_that_looks_late() -> None:
    late, source, scheme = Late(), nn.Linear(2, 2), WorkerWeightSyncScheme()
    nn.init.constant_(source.weight, 1.0)
    scheme.init_on_sender("policy", remote_collectors=[late], source_model=source)
    await scheme.get_sender().send_async()
    nn.init.constant_(source.weight, 2.0)
    late.goes_on.set()
    await scheme.get_sender().wait_async()
    assert late.weights["weight"].tolist() == [[1, 1], [1, 1]]
    await scheme.close()


@pytest.mark.parametrize("kind", ["worker", "actor"])
def test_a_step_before_a_blocking_wait_which_begins_the_call_is_not_seen(kind: str) -> None:
    late, weights = Late(), {"w": torch.ones(2), "_extra_state": {"steps": [1]}}
    late.goes_on.set()
    transport = WorkerTransport(late) if kind == "worker" else WorkerActorTransport(late, "state_dict")
    transport.send_weights_async("policy", weights)
    weights["w"].fill_(2.0)
    weights["_extra_state"]["steps"].append(2)
    transport.wait_ack()
    assert late.weights["w"].tolist() == [1, 1]
    assert late.weights["_extra_state"] == {"steps": [1]}
    transport.close()


@pytest.mark.parametrize("nested", [False, True])
async def test_the_copies_are_what_was_sent_and_tied_tensors_are_copied_once(nested: bool) -> None:
    tied = nn.Parameter(torch.ones(2))
    sent: Any = OrderedDict(a=tied, b=tied, c=torch.zeros(0), d=torch.zeros(0))
    sent = TensorDict({"inner": dict(sent)}) if nested else {"inner": sent}
    late = Late()
    late.goes_on.set()
    transport = WorkerTransport(late)
    await transport.send_weights_async("policy", sent)
    await transport.wait_ack()
    got = late.weights["inner"]
    assert type(late.weights) is type(sent)
    assert nested or type(got) is OrderedDict
    assert got["a"] is got["b"] is not tied
    assert got["c"] is not got["d"]
    assert not got["a"].requires_grad
    await transport.close()


async def test_a_module_in_a_dict_is_copied_with_its_ties_and_its_sparse_parameters() -> None:
    module, lazy, late = nn.Linear(2, 2), nn.LazyLinear(2), Late()
    module.register_parameter("sparse", nn.Parameter(torch.eye(2).to_sparse()))
    late.goes_on.set()
    transport = WorkerTransport(late)
    await transport.send_weights_async("policy", {"m": module, "tied": module.weight, "lazy": lazy})
    await transport.wait_ack()
    got = late.weights["m"]
    assert (type(got), type(late.weights["lazy"])) == (nn.Linear, nn.LazyLinear)
    assert got.weight.data_ptr() == late.weights["tied"].data_ptr() != module.weight.data_ptr()
    assert got.sparse.is_sparse
    assert got.sparse is not module.sparse
    await transport.close()


def test_what_is_waited_for_at_once_is_not_copied() -> None:
    late, weights = Late(), {"w": torch.ones(2)}
    late.goes_on.set()
    transport = WorkerTransport(late)
    transport.send_weights("policy", weights)
    assert late.weights is weights
    transport.close()


def test_calls_of_torchs_have_copies_come_one_by_one_and_have_the_schemes_time(tmp_path: Path) -> None:
    run("torch_rpc_ends", tmp_path / "store")


class Collector:
    def update_policy_weights_(self, policy_or_weights: Any) -> None: ...


NOBODY: dict[str, dict[str, Any]] = {
    "an object": {"remote_collectors": [Collector()]},
    "only the processes": {"collector_infos": ["worker"]},
    "no class": {"collector_infos": ["worker"], "collector_rrefs": ["rref"]},
    "a class without the method": {"collector_infos": ["w"], "collector_rrefs": ["rref"], "collector_class": dict},
    "no process": {"collector_infos": [None], "collector_rrefs": ["rref"], "collector_class": Collector},
}


@pytest.mark.parametrize("kind", NOBODY)
def test_who_cannot_be_called_by_rpc_is_refused_and_nothing_counts_as_applied(kind: str) -> None:
    with pytest.raises(ConfigError, match="cannot be called by RPCWeightSyncScheme"):
        RPCWeightSyncScheme().init_on_sender("policy", source_model={"w": torch.ones(1)}, **NOBODY[kind])
