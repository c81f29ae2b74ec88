"""``select=``: unselected tensors are not sent, and unchanged at the worker."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rlinf_async.errors import ConfigError
from tests.weights.ends import Tied, both

PUBLISHING = ("multiprocess", "shared memory")

every_way = pytest.mark.parametrize(
    ("kind", "strategy"), [(kind, strategy) for kind in PUBLISHING for strategy in ("state_dict", "tensordict")]
)
SELECTS: tuple[Any, ...] = (
    "trainable",
    lambda name, tensor: not isinstance(tensor, nn.Parameter) or tensor.requires_grad,
)


def half_frozen(value: float) -> Tied:
    model = Tied(value)
    model.layers[1].requires_grad_(False)
    return model


def shown(model: Tied) -> dict[str, set[float]]:
    """The values of its second layer, and of everything else: of buffers too, which change in training."""
    found: dict[str, set[float]] = {"trained": set(), "frozen": set()}
    for name, tensor in model.state_dict().items():
        found["frozen" if name.startswith("layers.1.") else "trained"] |= {float(x) for x in torch.aminmax(tensor)}
    return found


@pytest.mark.parametrize("select", SELECTS, ids=["by name", "by a function"])
@every_way
async def test_frozen_parameters_are_not_sent_whatever_the_strategy(kind: str, strategy: str, select: Any) -> None:
    source = half_frozen(1.0)
    async with both(kind, source=source, strategy=strategy, select=select) as ends:
        for value in (1.0, 2.0):
            source.fill(value)
            await ends.deliver()
            assert shown(ends.model) == {"trained": {value}, "frozen": {0.0}}
        await ends.deliver(half_frozen(3.0))  # given to send() and not at first
        assert shown(ends.model) == {"trained": {3.0}, "frozen": {0.0}}


async def test_a_worker_s_frozen_parameters_are_its_own_business() -> None:
    async with both("multiprocess", model=half_frozen(0.0), source=Tied(5.0), select="trainable") as ends:
        await ends.deliver()
        assert ends.sees == {5.0}


@pytest.mark.parametrize("kind", PUBLISHING)
async def test_detached_weights_which_do_not_tell_what_is_trained_are_refused(kind: str) -> None:
    source = half_frozen(1.0)
    async with both(kind, source=source, select="trainable") as ends:
        with pytest.raises(
            ConfigError, match=r"'trainable' has nothing to go by: none of the 5 tensors.*keep_vars=True"
        ):
            await ends.sender.send(source.state_dict())
        await ends.deliver(source.state_dict(keep_vars=True))
        assert shown(ends.model) == {"trained": {1.0}, "frozen": {0.0}}
