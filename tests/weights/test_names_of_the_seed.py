"""TorchRL's names of what calls workers: weights move by each of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlinf_async import torchrl
from tests.weights.ends import Host, Tied

TRANSFORMS = {
    f"{prefix}ModuleTransformScheme": (f"{prefix}ModuleTransformSender", f"{prefix}ModuleTransformReceiver")
    for prefix in ("", "Ray", "Worker")
}
SCHEMES = {"RayWeightSyncScheme": ("WeightSender", "WeightReceiver"), **TRANSFORMS}


@pytest.mark.parametrize("name", SCHEMES)
async def test_a_scheme_moves_weights_by_any_of_its_names(name: str) -> None:
    scheme, (sender, receiver) = getattr(torchrl, name), SCHEMES[name]
    model, sending, receiving = Tied(), scheme(), scheme()
    receiving.init_on_worker("policy", model=model)
    host = Host(receiving.get_receiver())
    ways: dict[str, Any] = {"remote_collectors": [host]}
    if name in TRANSFORMS:
        ways = {"actors": [SimpleNamespace(_actor=host)]}
    sending.init_on_sender("policy", source_model=Tied(1.0), **ways)
    assert (await sending.get_sender().send()).version == 1
    assert model.values() == {1.0}
    assert isinstance(sending.get_sender(), getattr(torchrl, sender))
    assert isinstance(receiving.get_receiver(), getattr(torchrl, receiver))
    for each in (sending, receiving):
        await each.close()


class Takes:
    def update_policy_weights_(self, policy_or_weights: Any) -> None:
        self.weights = policy_or_weights

    def _update_weights_state_dict(self, state_dict: Any) -> None:
        self.weights = state_dict


@pytest.mark.parametrize(("name", "options"), [("RayTransport", []), ("RayActorTransport", ["state_dict"])])
def test_a_transport_moves_weights_by_rays_name(name: str, options: list[str]) -> None:
    worker, kind = Takes(), getattr(torchrl, name)
    transport = kind(worker, *options)
    transport.send_weights("policy", {"w": torch.ones(2)})
    assert worker.weights["w"].tolist() == [1, 1]
    transport.close()
