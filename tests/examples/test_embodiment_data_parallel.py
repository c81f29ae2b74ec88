"""Two ranks in processes of their own, against one rank with all of the data."""

from __future__ import annotations

import os
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from common.data_parallel import DataParallel
from torch import nn
from torch.distributed import TCPStore

CPU = torch.device("cpu")


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def everything() -> torch.Tensor:
    return torch.linspace(-2.0, 3.0, 24).view(8, 3).square()


def run_rank(rank: int, port: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    ranks = DataParallel(2, CPU)
    torch.manual_seed(rank)
    module, share = model(), everything()[rank * 4 : rank * 4 + 4]
    ranks.share_weights(module)
    module(share).mean().backward()
    ranks.average_gradients(module.parameters())
    count, mean, variance = ranks.moments(share)
    torch.distributed.destroy_process_group()
    return {
        "weights": [parameter.tolist() for parameter in module.parameters()],
        "gradients": [parameter.grad.tolist() for parameter in module.parameters() if parameter.grad is not None],
        "moments": (count.item(), mean.tolist(), variance.tolist()),
    }


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Any]]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with get_context("spawn").Pool(2) as pool:
        return pool.starmap(run_rank, [(rank, store.port) for rank in range(2)], chunksize=1)


def close(actual: Any, expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(actual, dtype=expected.dtype), expected)


def test_every_rank_begins_with_the_weights_of_rank_0(outcomes: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    rank_0 = model()
    for outcome in outcomes:
        for weights, expected in zip(outcome["weights"], rank_0.parameters(), strict=True):
            close(weights, expected.detach())


def test_averaged_gradients_are_those_of_all_the_data(outcomes: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    module = model()
    module(everything()).mean().backward()
    for outcome in outcomes:
        for gradient, parameter in zip(outcome["gradients"], module.parameters(), strict=True):
            assert parameter.grad is not None
            close(gradient, parameter.grad)


def test_moments_are_those_of_all_the_data(outcomes: list[dict[str, Any]]) -> None:
    whole = everything().double()
    for outcome in outcomes:
        count, mean, variance = outcome["moments"]
        assert count == 8
        close(mean, whole.mean(0))
        close(variance, whole.var(0, unbiased=False))


def test_one_rank_needs_no_process_group() -> None:
    alone = DataParallel(1, CPU)
    module = model()
    module(everything()).mean().backward()
    before = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    alone.average_gradients(module.parameters())
    assert all(
        torch.equal(parameter.grad, gradient)
        for parameter, gradient in zip(module.parameters(), before, strict=True)
        if parameter.grad is not None
    )
    assert alone.moments(torch.tensor([1.0, 3.0]))[1:] == (2.0, 1.0)
    assert not torch.distributed.is_initialized()
