"""Receive memory: reuse once the last view of it is gone."""

from __future__ import annotations

import gc
import threading

import numpy
import torch

from rlinf_async._transports.memory import WarmMemory

MiB = 1 << 20


def address(view: memoryview) -> int:
    return torch.frombuffer(view, dtype=torch.uint8).data_ptr()


def test_what_is_taken_has_the_size_asked_for_and_can_be_written() -> None:
    memory = WarmMemory()
    for nbytes in [0, 1, 1000, MiB - 1, MiB, MiB + 1, 5 * MiB + 3]:
        view = memory.take(nbytes)
        assert (view.nbytes, view.readonly, view.format, view.ndim) == (nbytes, False, "B", 1)
        view[:] = bytes(nbytes)


def test_memory_is_handed_out_again_once_the_last_view_of_it_is_gone() -> None:
    memory = WarmMemory()
    view = memory.take(4 * MiB)
    first = address(view)
    tensor = torch.frombuffer(view[MiB : 2 * MiB], dtype=torch.float32)
    array = tensor.view(64, -1)[3:].numpy()
    del view, tensor
    assert memory.unused == 0
    second = memory.take(4 * MiB)
    assert address(second) != first
    del array
    assert memory.unused == 4 * MiB
    assert address(memory.take(4 * MiB)) == first


def test_a_size_that_is_nearly_the_same_fits_and_one_that_is_much_smaller_does_not() -> None:
    memory = WarmMemory()
    where = address(memory.take(8 * MiB))
    assert address(memory.take(5 * MiB)) == where
    assert address(memory.take(2 * MiB)) != where
    assert memory.unused == 10 * MiB


def test_no_more_than_the_bound_is_kept_and_that_is_the_latest() -> None:
    memory = WarmMemory(keep=6 * MiB)
    views = [memory.take(2 * MiB) for _ in range(5)]
    latest = address(views[-1])
    while views:
        views.pop(0)
    assert memory.unused == 6 * MiB
    assert latest in {address(view) for view in [memory.take(2 * MiB) for _ in range(3)]}
    memory.take(7 * MiB)
    assert memory.unused <= 6 * MiB


def test_what_only_the_collector_frees_comes_back_too() -> None:
    memory = WarmMemory()
    circle: list[object] = [memory.take(MiB)]
    circle.append(circle)
    del circle
    gc.collect()
    assert memory.unused == MiB


def test_threads_that_take_and_return_never_share_memory() -> None:
    memory = WarmMemory()
    wrong = []

    def work(mark: int) -> None:
        for _ in range(50):
            array = numpy.frombuffer(memory.take(MiB), dtype=numpy.uint8)
            array[:] = mark
            if not (array == mark).all():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 0 < memory.unused <= 8 * MiB
