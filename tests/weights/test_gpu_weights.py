"""Weights on a real GPU, between processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests._support.weight_parts import IN_SLOT, ON_GPU
from tests.weights.children import child
from tests.weights.gpu_child import VERSIONS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("fork_server"),
    pytest.mark.skipif(
        not torch.cuda.device_count(), reason="needs an NVIDIA GPU and a torch built for CUDA: run it on such a machine"
    ),
]

BY_WAY_OF_THE_CPU = {"RLINF_GPU_LINKS": "0"}


async def story(role: str, **facts: Any) -> Any:
    async with child(role, "gpu_child", **facts) as trainer:
        return await trainer.story()


@pytest.mark.parametrize("apply", ["copy", "map"])
@pytest.mark.parametrize(
    ("source", "readers", "environment", "places"),
    [
        (True, [True, True], {}, ON_GPU),
        (True, [True, False], {}, ON_GPU | IN_SLOT),
        (True, [True, False], BY_WAY_OF_THE_CPU, IN_SLOT),
        (False, [True], {}, IN_SLOT),
    ],
    ids=["on one GPU", "to both", "by way of the CPU", "from the CPU"],
)
async def test_no_reader_sees_two_versions_wherever_it_reads(
    apply: str, source: bool, readers: list[bool], environment: dict[str, str], places: int
) -> None:
    told = await story("train", apply=apply, source=source, readers=readers, environment=environment)
    for reader, is_on_gpu in zip(told["stories"], readers, strict=True):
        assert reader["torn"] == []
        assert reader["is_registered"] is (is_on_gpu and places == IN_SLOT), "of what a GPU copies from"
        assert (reader["last"], reader["after"]) == (VERSIONS, [VERSIONS])
    assert set(told["places"]) == {places}
    if places & IN_SLOT and source:
        assert not told["is_refused"], "CUDA registers shared memory"


async def test_expandable_segments_do_not_keep_weights_from_staying_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    told = await story("train", apply="copy", source=True, readers=[True])
    assert told["places"] == [ON_GPU]
    assert [reader["after"] for reader in told["stories"]] == [[VERSIONS]]


async def test_a_gpu_makes_the_same_delta_byte_for_byte_and_applies_the_other_s() -> None:
    told = await story("delta")
    assert told
    for what, found in told.items():
        assert found == [True] * 4, what
