"""Raw copies of tensors without conversion, divided among threads."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from rlinf_async.weights.model import moves
from rlinf_async.weights.model.moves import _DENSE, Moves, moves_among, share, wrote


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
    Moves.of([target], [source]).move()
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
    found = Moves.of(targets, sources)
    assert found.nbytes == 16
    found.move(threads=3)
    assert [float(target.detach().sum()) for target in targets] == [3, 0, 1]


@given(st.lists(st.integers(0, 300), max_size=30), st.integers(1, 99))
def test_it_is_cut_into_pieces_of_which_every_byte_is_in_one(sizes: list[int], most: int) -> None:
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    whole = Moves((start, 10_000 + start, size) for start, size in zip(starts, sizes, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moves, "_PIECE", most)
        pieces = whole._cut()
    assert [byte for at, _, nbytes in pieces for byte in range(at, at + nbytes)] == list(range(sum(sizes)))
    assert all(source == target + 10_000 and 0 < nbytes <= most for target, source, nbytes in pieces)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_calls_are_shared_by_threads_of_which_a_slow_one_makes_fewer(threads: int) -> None:
    rest_is_done = threading.Event()
    by: list[int] = []
    slow: list[int] = []

    def call(number: int) -> None:
        by.append(threading.get_ident())
        if number == 0 and threads > 1:
            slow.append(threading.get_ident())
            assert rest_is_done.wait(10)
        if len(by) == 100:
            rest_is_done.set()

    share(threads, [functools.partial(call, number) for number in range(100)])
    assert len(by) == 100
    assert [by.count(thread) for thread in slow] == [1] * (threads > 1)


def test_where_no_thread_can_be_started_the_caller_makes_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    called: list[int] = []
    share(3, [functools.partial(called.append, number) for number in range(10)])
    assert called == list(range(10))


def test_an_error_in_one_of_the_threads_is_raised_when_all_have_ended() -> None:
    called: list[int] = []

    def call(number: int) -> None:
        called.append(number)
        if number == 3:
            raise ValueError("the third")

    before = threading.active_count()
    with pytest.raises(ValueError, match="the third"):
        share(2, [functools.partial(call, number) for number in range(10)])
    assert {0, 1, 2, 3} <= set(called)
    assert threading.active_count() == before


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_several_threads_move_what_one_moves(threads: int) -> None:
    sources = [torch.arange(size, dtype=torch.int32) for size in (1, 1000, 3_000_000, 17, 0, 500_000)]
    targets = [torch.zeros_like(source) for source in sources]
    Moves.of(targets, sources).move(threads)
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
