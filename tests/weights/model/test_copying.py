"""Copies of many tensors: as memory, divided among threads, or by torch."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from rlinf_async.weights.model import copying
from rlinf_async.weights.model.copying import DENSE, copy_in_order, copy_tensors, movable, move, share


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """That torch has; a few megabytes are worth a second one."""
    monkeypatch.setattr(copying, "_SHARED_BYTES", 4 << 20)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def mixed() -> list[torch.Tensor]:
    """Small ones of 12 MB together, and large ones among them."""
    sizes = [20_000] * 150
    sizes[30] = sizes[140] = 300_000
    return [torch.full((size,), float(index)) for index, size in enumerate(sizes)]


def test_each_gets_its_own_source_in_its_own_dtype(threads: int) -> None:
    sources = mixed()
    targets = [torch.zeros(source.shape, dtype=torch.float64) for source in sources]
    before = threading.active_count()
    copy_tensors(targets, sources)
    assert all(torch.equal(target, source.double()) for target, source in zip(targets, sources, strict=True))
    assert threading.active_count() == before


def test_parameters_are_written_in_place_by_either_thread(threads: int) -> None:
    targets = [torch.nn.Parameter(torch.zeros_like(source)) for source in mixed()]
    copy_tensors(targets, mixed())
    assert [float(target.detach()[-1]) for target in targets] == list(range(150))


@pytest.mark.parametrize("wrong", [0, 149])
def test_an_error_in_either_thread_is_raised_when_both_have_ended(threads: int, wrong: int) -> None:
    sources = mixed()
    targets = [torch.zeros_like(source) for source in sources]
    sources[wrong] = torch.zeros(3)
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="size"):
        copy_tensors(targets, sources)
    assert threading.active_count() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [400, 2])
def test_two_threads_take_part_even_where_torch_has_one(
    monkeypatch: pytest.MonkeyPatch, count: int, dtype: torch.dtype
) -> None:
    """In small tensors and large ones, in those that are moved and those that are converted."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(copying, "_SHARED_BYTES", 4 << 20)
    shared: list[tuple[int, int]] = []

    original = copying.share

    def share(threads: int, calls: Sequence[Callable[[], object]]) -> None:
        shared.append((threads, len(calls)))
        original(threads, calls)

    monkeypatch.setattr(copying, "share", share)
    monkeypatch.setattr(copying, "_PIECE_BYTES", 1 << 20)
    sources = [torch.full((8_000_000 // count,), float(index)) for index in range(count)]
    targets = [torch.zeros(source.shape, dtype=dtype) for source in sources]
    copy_tensors(targets, sources)
    assert all(torch.equal(target, source.to(dtype)) for target, source in zip(targets, sources, strict=True))
    assert [each for each in shared if each[1]] == [(2, 32 if count == 2 and dtype is torch.float32 else 2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torchs_own_threads_share_only_what_is_large_and_converted(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, threads: int
) -> None:
    called: list[int] = []
    copy = copying._copy

    def count(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        called.extend(target.numel() for target in targets)
        copy(targets, sources)

    monkeypatch.setattr(copying, "_copy", count)
    sources = mixed()
    targets = [torch.zeros(source.shape, dtype=dtype) for source in sources]
    copy_tensors(targets, sources)
    assert called.count(20_000) == 148
    assert called.count(300_000) == (0 if dtype is torch.float32 else 2)


def test_one_processor_has_no_second_thread(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr(copying, "ThreadPoolExecutor", None)
    targets = [torch.zeros_like(source) for source in mixed()]
    copy_tensors(targets, mixed())
    assert all(map(torch.equal, targets, mixed()))


def test_what_is_written_to_cannot_be_gone_back_through(threads: int) -> None:
    weight = torch.nn.Parameter(torch.ones(2_000_000))
    loss = (weight * weight).sum()
    copy_tensors([weight], [torch.zeros(2_000_000)])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_nothing_is_copied_from_nothing() -> None:
    copy_tensors([], [])


@pytest.mark.parametrize("step", [1, 4000, 1 << 30])
def test_in_order_what_is_said_to_be_there_is_there(threads: int, step: int) -> None:
    sources = [torch.full((size,), index + 1.0) for index, size in enumerate((10, 3000, 7, 1, 0, 5000, 2))]
    memory = torch.zeros(sum(source.numel() for source in sources) * 4, dtype=torch.uint8)
    targets, ends, end = [], [], 0
    for source in sources:
        targets.append(memory[end : end + source.nbytes].view(torch.float32))
        end += source.nbytes
        ends.append(end)
    told: list[int] = []

    def copied(there: int) -> None:
        told.append(there)
        assert bool((memory[:there].view(torch.float32) > 0).all())

    copy_in_order(targets, sources, ends, copied, step)
    assert torch.equal(memory.view(torch.float32), torch.cat(sources))
    assert told == sorted(told)
    assert bool(told) is (step < 1 << 30)


def test_in_order_a_large_tensor_is_said_part_by_part() -> None:
    source, target = torch.arange(1000.0), torch.zeros(1000, dtype=torch.float64)
    told: list[int] = []
    copy_in_order([target], [source], [8000], told.append, 3200)
    assert told == [3200, 6400, 8000]
    assert torch.equal(target, source.double())


def test_in_order_a_large_tensor_that_does_not_lie_in_one_piece_is_copied_as_well() -> None:
    source, target = torch.arange(1000.0).view(10, 100).t(), torch.zeros(100, 10)
    told: list[int] = []
    copy_in_order([target], [source], [4000], told.append, 400)
    assert told == [4000]
    assert torch.equal(target, source)


# -- memory as it is --


def random_bytes(dtype: torch.dtype, count: int = 1000) -> torch.Tensor:
    memory = torch.randint(0, 2 if dtype is torch.bool else 256, (count * dtype.itemsize,), dtype=torch.uint8)
    return memory.view(dtype)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(torch.uint8)


@pytest.mark.parametrize("dtype", sorted(DENSE, key=str), ids=str)
def test_every_bit_of_a_dense_dtype_arrives_even_of_what_is_no_number(dtype: torch.dtype) -> None:
    source = random_bytes(dtype)
    target = random_bytes(dtype)
    assert movable([target], [source], [0]) == [0]
    move([target], [source])
    assert torch.equal(as_bytes(target), as_bytes(source))


def test_the_dtypes_are_those_that_models_have() -> None:
    wanted = {torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool}
    assert wanted <= DENSE
    assert not DENSE & {torch.complex64, torch.qint8, torch.quint8}


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
    assert movable([ones, target, ones], [ones, source, ones], [1]) == []
    assert movable([ones, target, ones], [ones, source, ones], [0, 1, 2]) == [0, 2]
    assert movable([ones, target, ones], [ones, source, ones], [2]) == [2]


def test_parameters_are_moved_like_tensors_and_those_without_elements_too() -> None:
    targets = [nn.Parameter(torch.zeros(3)), torch.zeros(0), torch.zeros(())]
    sources = [torch.ones(3), nn.Parameter(torch.zeros(0)), torch.ones(())]
    move(targets, sources, threads=3)
    assert [float(target.detach().sum()) for target in targets] == [3, 0, 1]


@given(st.lists(st.integers(0, 300), max_size=30), st.integers(1, 99))
def test_it_is_cut_into_pieces_of_which_every_byte_is_in_one(sizes: list[int], most: int) -> None:
    sources = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    targets = [torch.zeros_like(source) for source in sources]
    moved: list[int] = []

    def note(to: int, of: int, nbytes: int) -> None:
        moved.append(nbytes)
        ctypes.memmove(to, of, nbytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "_PIECE_BYTES", most)
        patch.setattr(copying, "_MOVE", note)
        move(targets, sources)
    assert all(map(torch.equal, targets, sources))
    assert sum(moved) == sum(sizes)
    assert all(0 < nbytes <= most for nbytes in moved)


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
    move(targets, sources, threads)
    assert all(map(torch.equal, targets, sources))
