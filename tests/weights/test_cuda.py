"""What is asked of CUDA, and in which order, with recorders in its place."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from rlinf_async.data import device_memory
from rlinf_async.data.device_memory import Handle
from rlinf_async.weights import cuda
from rlinf_async.weights.cuda import Cuda
from tests.weights.gpus import GPU

MiB = 1 << 20


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says that it is on a GPU."""

    is_cuda = True
    device = GPU


class Recorder:
    """CUDA, as torch shows it and as its runtime: what it was asked for, in order."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.refuses: dict[str, int] = {}
        self.last_error = 0

    # -- torch.cuda ---------------------------------------------------------------------------------------------

    def stream_of(self, name: str) -> Any:
        recorder = self

        class Stream:
            def __repr__(self) -> str:
                return name

            def record_event(self) -> str:
                return f"point of {name}"

            def __getattr__(self, what: str) -> Callable[..., None]:
                return lambda *facts: recorder.calls.append((name, what, *map(str, facts)))

        return Stream()

    def event(self, **options: Any) -> Any:
        event = self.stream_of("event")
        assert options == {"blocking": True}
        return event

    @contextlib.contextmanager
    def within(self, what: Any) -> Iterator[None]:
        yield

    # -- the runtime --------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            facts = [each.value for each in arguments if isinstance(each, ctypes._SimpleCData)]
            self.calls.append((name, *facts))
            if name == "cudaGetLastError":
                self.last_error = 0
            elif self.refuses.get(name, 0) > 0:
                self.refuses[name] -= 1
                self.last_error = 2
                return 2
            if name == "cudaMalloc":
                arguments[0]._obj.value = 4096
            return 0

        return call


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    for module in (cuda, device_memory):
        monkeypatch.setattr(module, "cuda_runtime", lambda: found)
    monkeypatch.setattr(device_memory, "_driver", lambda: found)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", found.within)
    monkeypatch.setattr(torch.cuda, "stream", found.within)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: found.stream_of("side stream"))
    monkeypatch.setattr(torch.cuda, "Event", found.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: found.stream_of("current stream"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: found.calls.append(("synchronize", str(device))))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.calls.append("empty_cache"))
    monkeypatch.setattr(torch, "as_tensor", lambda region, device: region_as_tensor(region))
    return found


def region_as_tensor(region: Any) -> Any:
    """As what it is described: so many bytes at that address."""
    described = region.__cuda_array_interface__
    assert described["typestr"] == "|u1"
    tensor = torch.zeros(described["shape"], dtype=torch.uint8).as_subclass(OnGpu)
    address = described["data"][0]
    tensor.data_ptr = lambda: address  # type: ignore[method-assign]
    return tensor


def on_gpu(value: float) -> torch.Tensor:
    return torch.full((3,), value).as_subclass(OnGpu)


def test_it_is_known_which_tensors_are_on_a_gpu(recorder: Recorder) -> None:
    here, there = torch.zeros(3), on_gpu(1)
    assert Cuda().places([here, there]) == {GPU}
    assert Cuda().only_place([here, there]) is None
    assert Cuda().only_place([there, on_gpu(2)]) == GPU
    assert Cuda().places([here]) == set()
    assert recorder.calls == []


def test_copies_wait_for_the_callers_stream_and_are_waited_for(recorder: Recorder) -> None:
    own = Cuda()
    marks = own.mark([GPU])
    here, there, plain = torch.zeros(3), on_gpu(0), torch.zeros(3)
    own.copy([here, there, plain], [on_gpu(1), torch.full((3,), 2.0), torch.full((3,), 3.0)], marks)
    assert [float(tensor[0]) for tensor in (here, there, plain)] == [1, 2, 3]
    assert recorder.calls == [
        ("side stream", "wait_stream", "current stream"),
        ("side stream", "wait_event", "point of current stream"),
        ("event", "record", "side stream"),
        ("event", "synchronize"),
    ]


def test_copies_after_nothing_in_particular_wait_for_all_that_was_begun(recorder: Recorder) -> None:
    own = Cuda()
    for after, waits in (
        (None, ("synchronize", "cuda:0")),
        ({}, ("synchronize", "cuda:0")),
        ({GPU: None}, ("side stream", "wait_stream", "current stream")),
    ):
        recorder.calls.clear()
        own.copy([on_gpu(0)], [on_gpu(1)], after)
        assert recorder.calls == [waits, ("event", "record", "side stream"), ("event", "synchronize")]


def test_copies_that_fail_half_way_have_ended_before_anybody_hears_of_it(recorder: Recorder) -> None:
    with pytest.raises(RuntimeError):
        Cuda().copy([on_gpu(0), on_gpu(0)], [on_gpu(1), torch.zeros(2).as_subclass(OnGpu)], {GPU: None})
    assert recorder.calls[-1] == ("side stream", "synchronize")


def test_memory_is_allocated_past_torch_which_gives_what_it_keeps_in_store_where_there_is_none(
    recorder: Recorder,
) -> None:
    own = Cuda()
    memory = own.allocate(3 * MiB, GPU)
    assert recorder.calls == [("cudaMalloc", 4 * MiB)]
    assert memory.nbytes == 3 * MiB
    own.free(memory)
    recorder.calls.clear()
    recorder.refuses["cudaMalloc"] = 1
    own.free(own.allocate(3 * MiB, GPU))
    malloc = ("cudaMalloc", 4 * MiB)
    assert recorder.calls == [malloc, ("cudaGetLastError",), "empty_cache", malloc, ("cudaFree", 4096)]
    recorder.refuses["cudaMalloc"] = 2
    with pytest.raises(RuntimeError, match="cudaMalloc failed with code 2"):
        own.allocate(3 * MiB, GPU)
    assert recorder.last_error == 0


def test_what_this_process_has_exported_it_sees_without_opening_it(recorder: Recorder) -> None:
    own = Cuda()
    memory = own.allocate(MiB, GPU)
    handle = own.export(memory)
    assert handle.nbytes == MiB
    assert own.open(handle, GPU) is memory
    own.shut(handle, GPU)
    own.free(memory)
    assert [call[0] for call in recorder.calls] == [
        "cudaMalloc",
        "cuMemGetAddressRange_v2",
        "cudaIpcGetMemHandle",
        "cudaFree",
    ]
    recorder.calls.clear()
    own.open(handle, GPU)
    assert [call[0] for call in recorder.calls] == ["cudaIpcOpenMemHandle"], "and that is over when it is freed"


def test_what_two_in_this_process_have_opened_is_closed_when_both_have_shut_it(recorder: Recorder) -> None:
    own, handle = Cuda(), Handle(bytes(64), 0, MiB)
    own.open(handle, GPU)
    own.open(handle, GPU)
    own.shut(handle, GPU)
    assert [call[0] for call in recorder.calls] == ["cudaIpcOpenMemHandle"]
    own.shut(handle, GPU)
    own.shut(handle, GPU)
    assert [call[0] for call in recorder.calls] == ["cudaIpcOpenMemHandle", "cudaIpcCloseMemHandle"]


@pytest.mark.parametrize(("switch", "found"), [("0", ""), ("1", "a uuid"), ("", "a uuid")])
def test_a_gpu_has_a_name_for_others_unless_its_memory_is_not_to_be_shared(
    switch: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Properties:
        uuid = "a uuid"

    monkeypatch.setenv("RLINF_GPU_LINKS", switch)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties())
    assert Cuda().uuid(GPU) == found
