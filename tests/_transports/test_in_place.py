"""Tensors sent as bytes and received in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf_async._core.segment import write_segment
from rlinf_async._transports.in_place import describe, difference, fill, is_tensor, memory_of
from rlinf_async._transports.shared_memory import SharedSegment

TENSORS = [
    torch.arange(6.0).reshape(2, 3),
    torch.tensor(1.5),
    torch.empty(0, 4),
    torch.randn(3).to(torch.bfloat16),
    torch.tensor([True, False]),
    torch.randn(5, dtype=torch.complex64),
    torch.randn(5, dtype=torch.complex64).conj(),
    torch.arange(40_000)[100:30_000],
    torch.ones(4, requires_grad=True),
]


def segment(memory: memoryview) -> SharedSegment:
    return SharedSegment(write_segment([memory], memory.nbytes), memory.nbytes)


@pytest.mark.parametrize("tensor", TENSORS)
def test_a_tensor_is_filled_with_what_another_one_was(tensor: torch.Tensor) -> None:
    memory = memory_of(tensor)
    contents: list[Any] = [bytes(memory), memory]
    if memory.nbytes:
        contents.append(segment(memory))
    for content in contents:
        straight, strided = (
            torch.zeros_like(tensor, requires_grad=False),
            torch.zeros(2, *tensor.shape).to(tensor.dtype),
        )
        fill(straight, content)
        fill(strided.movedim(0, -1)[..., 1], content)
        assert torch.equal(straight, tensor.detach())
        assert torch.equal(strided[1], tensor.detach())
        assert not strided[0].any()


def test_the_memory_of_a_tensor_is_its_own() -> None:
    tensor = torch.zeros(10)
    memory_of(tensor)[:4] = torch.ones(1).numpy().tobytes()
    assert tensor[0] == 1


def test_what_differs_is_named() -> None:
    about = describe(torch.ones(2, 3))
    assert about == ["float32", [2, 3], "cpu"]
    assert difference(about, describe(torch.zeros(2, 3))) is None
    assert difference(about, describe(torch.ones(2, 3, dtype=torch.int8))) == (
        "its dtype is float32, and the tensor to receive it has int8"
    )
    assert difference(about, describe(torch.ones(6))) == "its shape is (2, 3), and the tensor to receive it has (6,)"
    assert difference(about, ["float32", [2, 3], "cuda"]) == (
        "its device is cpu, and the tensor to receive it has cuda"
    )


def test_only_dense_tensors_travel_alone() -> None:
    assert is_tensor(torch.ones(1))
    assert not is_tensor([1])
    assert not is_tensor(torch.eye(3).to_sparse())
