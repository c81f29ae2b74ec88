"""Description of a process's own GPU, with a fake driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlinf_async._messaging import peers
from rlinf_async._transports.devices import own_gpu
from rlinf_async._transports.devices.cuda_ipc import CudaIpcLink
from rlinf_async._transports.devices.gpu_link_choice import CUDA_IPC, GPU_LINKS, Gpu, gpu_link_between
from rlinf_async._transports.devices.own_gpu import OwnGpu, find_own_gpu


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three GPUs, of which this thread works on the second; it reaches the third."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(own_gpu, "_machine", lambda: "boot id")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: (one, other) == (1, 2))
    described: Any = lambda index: SimpleNamespace(uuid=f"uuid {index}", name="H200")  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_device_properties", described)


@pytest.mark.usefixtures("driver")
def test_the_gpu_is_the_current_one_with_those_that_it_reaches() -> None:
    own = find_own_gpu()
    assert own is not None
    assert own.device == torch.device("cuda", 1)
    assert own.gpu == Gpu("boot id", "uuid 1", "H200")
    assert own.reachable == {"uuid 2"}
    assert gpu_link_between(own.gpu, Gpu("boot id", "uuid 2", "H100"), own.reachable) == CUDA_IPC


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(("is_in_use", "found"), [(False, False), (True, True)])
def test_cuda_that_is_not_in_use_is_left_alone(is_in_use: bool, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_in_use)
    assert (peers._find_own_gpu() is not None) is found


@pytest.mark.usefixtures("driver")
def test_a_torch_that_was_not_built_for_cuda_has_no_gpu_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert find_own_gpu() is None


def test_tensors_of_the_cpu_and_what_is_no_tensor_are_not_kept() -> None:
    own = OwnGpu(torch.device("cuda", 0), Gpu("boot id", "uuid", "H200"))
    assert not own.keeps(torch.zeros(1 << 20))
    assert not own.keeps(torch.float32)


def test_every_way_has_its_link_and_nothing_else_has() -> None:
    own = OwnGpu(torch.device("cuda", 0), Gpu("boot id", "uuid", "H200"))
    made = {name: own.make_link(name, print, True, "127.0.0.1") for name in GPU_LINKS}
    assert len({type(link) for link in made.values()}) == 3
    assert isinstance(made[CUDA_IPC], CudaIpcLink)
    with pytest.raises(ValueError, match="there is no link 'gloo' between GPUs"):
        own.make_link("gloo", print, True, "127.0.0.1")
