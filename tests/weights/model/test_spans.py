"""What torch would not convert is moved as it is, in as many parts as there are threads; all else is left to torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rlinf_async.weights.model.spans import _DENSE, Spans, moves_among, wrote


def random_bytes(dtype: torch.dtype, count: int = 1000) -> torch.Tensor:
    memory = torch.randint(0, 2 if dtype is torch.bool else 256, (count * dtype.itemsize,), dtype=torch.uint8)
    return memory.view(dtype)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(torch.uint8)


@pytest.mark.parametrize("dtype", sorted(_DENSE, key=str), ids=str)
def test_every_bit_of_a_dense_dtype_arrives_even_of_what_is_no_number(dtype: torch.dtype) -> None:
    source = random_bytes(dtype)
    target = random_bytes(dtype)
    assert moves_among([target], [source], [0]) == [0]
    Spans.of([target], [source]).move()
    assert torch.equal(as_bytes(target), as_bytes(source))


def test_the_dtypes_are_those_that_models_have() -> None:
    wanted = {torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool}
    assert wanted <= _DENSE
    assert not _DENSE & {torch.complex64, torch.qint8, torch.quint8}


class Tagged(torch.Tensor):
    """Another kind of tensor."""


ones = torch.ones(2, 3, 4, 5)
OTHERS: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
    "another dtype": (ones.double(), ones),
    "another shape": (ones, ones[:1]),
    "as many elements in another shape": (torch.zeros(3, 4), torch.ones(4, 3)),
    "in another order": (ones.contiguous(memory_format=torch.channels_last), ones),
    "from another order": (ones.clone(), ones.transpose(0, 1)),
    "expanded": (torch.zeros(2, 3), torch.ones(1, 3).expand(2, 3)),
    "negated when it is read": (ones.clone(), torch._neg_view(ones)),
    "conjugate": (torch.zeros(3, dtype=torch.complex64), torch.ones(3, dtype=torch.complex64).conj()),
    "of another kind": (ones.clone(), ones.as_subclass(Tagged)),
    "without memory": (torch.zeros(3, device="meta"), torch.zeros(3, device="meta")),
    "sparse": (torch.zeros(3).to_sparse(), torch.ones(3).to_sparse()),
}


@pytest.mark.parametrize("pair", OTHERS.values(), ids=OTHERS.keys())
def test_what_is_more_than_a_move_is_torchs(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    target, source = pair
    assert moves_among([ones, target, ones], [ones, source, ones], [1]) == []
    assert moves_among([ones, target, ones], [ones, source, ones], [0, 1, 2]) == [0, 2]
    assert moves_among([ones, target, ones], [ones, source, ones], [2]) == [2]


def test_parameters_are_moved_like_tensors_and_those_without_elements_too() -> None:
    targets = [nn.Parameter(torch.zeros(3)), torch.zeros(0), torch.zeros(())]
    sources = [torch.ones(3), nn.Parameter(torch.zeros(0)), torch.ones(())]
    spans = Spans.of(targets, sources)
    assert spans.nbytes == 16
    spans.move(threads=3)
    assert [float(target.detach().sum()) for target in targets] == [3, 0, 1]


@given(st.lists(st.integers(0, 300), max_size=30), st.integers(1, 9))
def test_however_it_is_divided_every_byte_is_moved_once(sizes: list[int], parts: int) -> None:
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    spans = Spans((start, 10_000 + start, size) for start, size in zip(starts, sizes, strict=True))
    divided = spans._divided(parts)
    assert len(divided) <= parts
    covered = [byte for part in divided for target, _, nbytes in part for byte in range(target, target + nbytes)]
    assert covered == list(range(sum(sizes)))
    assert all(source == target + 10_000 for part in divided for target, source, _ in part)
    most = max((sum(nbytes for _, _, nbytes in part) for part in divided), default=0)
    assert most <= sum(sizes) / parts + 64


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_several_threads_move_what_one_moves(threads: int) -> None:
    sources = [torch.arange(size, dtype=torch.int32) for size in (1, 1000, 3_000_000, 17, 0, 500_000)]
    targets = [torch.zeros_like(source) for source in sources]
    Spans.of(targets, sources).move(threads)
    assert all(map(torch.equal, targets, sources))


def backward_after(write: Callable[[torch.Tensor], None]) -> None:
    weight = nn.Parameter(torch.ones(3))
    loss = (weight * weight).sum()
    write(weight)
    loss.backward()


def test_autograd_hears_that_what_it_has_kept_was_written_to() -> None:
    backward_after(lambda weight: None)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        backward_after(lambda weight: wrote([weight]))
