"""Calls to CUDA and their order, with recorders in its place."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from rlinf_async._transports.devices import device_memory
from rlinf_async._transports.devices.device_memory import IpcHandle
from rlinf_async.weights.memory import cuda
from rlinf_async.weights.memory.cuda import Cuda
from rlinf_async.weights.memory.gpus import copy_settled
from tests._support.fake_gpus import GPU, OnGpu

MiB = 1 << 20


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

    current = "current stream"

    @contextlib.contextmanager
    def within(self, what: Any) -> Iterator[None]:
        before, self.current = self.current, str(what)
        yield
        self.current = before

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
    for after in (None, {}):
        recorder.calls.clear()
        own.copy([on_gpu(0)], [on_gpu(1)], after)
        assert recorder.calls == [("synchronize", "cuda:0"), *COPIED]


COPIED = [("event", "record", "side stream"), ("event", "synchronize")]


def test_what_is_settled_is_copied_beside_all_that_the_trainer_has_queued(recorder: Recorder) -> None:
    own, target = Cuda(), on_gpu(0)
    copy_settled(own, [target], [on_gpu(1)])
    assert recorder.calls == COPIED, "it waits for nobody"


def test_a_thread_goes_on_after_the_points_that_another_one_has_marked(recorder: Recorder) -> None:
    own = Cuda()
    own.follow(own.mark([GPU]))
    own.follow({GPU: None})
    assert recorder.calls == [("current stream", "wait_event", "point of current stream")]


@pytest.mark.parametrize(
    ("dtype", "copied_as"),
    [
        (torch.bfloat16, torch.int16),
        (torch.float16, torch.int16),
        (torch.float32, torch.int32),
        (torch.float64, torch.int64),
        (torch.float8_e4m3fn, torch.int8),
        (torch.uint16, torch.int16),
        (torch.uint32, torch.int32),
        (torch.uint64, torch.int64),
        (torch.bool, torch.int8),
        (torch.complex64, torch.complex64),
    ],
)
def test_what_keeps_its_dtype_is_copied_as_the_bits_that_it_is(
    dtype: torch.dtype, copied_as: torch.dtype, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[torch.dtype] = []
    copy = torch._foreach_copy_

    def note(targets: Any, sources: Any, **options: Any) -> None:
        copied.extend(tensor.dtype for tensor in (*targets, *sources))
        copy(targets, sources, **options)

    monkeypatch.setattr(torch, "_foreach_copy_", note)
    octets = torch.arange(1, 129, dtype=torch.uint8) if dtype is not torch.bool else torch.ones(128, dtype=torch.uint8)
    source = octets.view(dtype).view(2, -1).t()  # NaNs with something in them among the floats
    target = torch.zeros_like(source).as_subclass(OnGpu)
    Cuda().copy([target], [source.as_subclass(OnGpu)], {GPU: None})
    assert copied == [copied_as] * 2
    assert torch.equal(target.t().contiguous().view(-1).view(torch.uint8).as_subclass(torch.Tensor), octets)


def test_what_is_cast_or_comes_from_elsewhere_is_copied_as_the_numbers_that_it_is(recorder: Recorder) -> None:
    half, single = torch.full((3,), 1.5, dtype=torch.float16), torch.zeros(3)
    Cuda().copy([single.as_subclass(OnGpu)], [half.as_subclass(OnGpu)], {GPU: None})
    assert single.tolist() == [1.5] * 3
    turned = torch.full((3,), 1 + 2j).conj().imag
    assert turned.is_neg()
    Cuda().copy([single.as_subclass(OnGpu)], [turned.as_subclass(OnGpu)], {GPU: None})
    assert single.tolist() == [-2] * 3


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
    opened = own.open(handle, GPU)
    assert (opened.data_ptr(), opened.nbytes) == (memory.data_ptr(), memory.nbytes)
    assert opened.untyped_storage()._cdata != memory.untyped_storage()._cdata, "each has users of its own"
    own.shut(handle, GPU)
    own.free(memory)
    assert [call[0] for call in recorder.calls] == [
        "cudaMalloc",
        "cudaSetDevice",
        "cuMemGetAddressRange_v2",
        "cudaIpcGetMemHandle",
        "cudaFree",
    ]
    recorder.calls.clear()
    own.open(handle, GPU)
    assert [call[0] for call in recorder.calls] == ["cudaIpcOpenMemHandle"], "and that is over when it is freed"


def test_what_two_in_this_process_have_opened_is_closed_when_both_have_shut_it(recorder: Recorder) -> None:
    own, handle = Cuda(), IpcHandle(bytes(64), 0, MiB)
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
