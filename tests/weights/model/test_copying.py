"""Copies of many tensors by two threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from rlinf_async.weights.model import copying, moves
from rlinf_async.weights.model.copying import copy_in_order, copy_tensors


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """That torch has; a few megabytes are worth a second one."""
    monkeypatch.setattr(copying, "_WORTH", 4 << 20)
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
    monkeypatch.setattr(copying, "_WORTH", 4 << 20)
    shared: list[tuple[int, int]] = []

    original = moves.share

    def share(threads: int, calls: Sequence[Callable[[], object]]) -> None:
        shared.append((threads, len(calls)))
        original(threads, calls)

    monkeypatch.setattr(copying, "share", share)
    monkeypatch.setattr(moves, "share", share)
    monkeypatch.setattr(moves, "_PIECE", 1 << 20)
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
    monkeypatch.setattr(moves, "ThreadPoolExecutor", None)
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
