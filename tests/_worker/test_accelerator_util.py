"""RLinf's accelerator queries, for every maker and for a rehearsal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch

from rlinf_async import AcceleratorType, AcceleratorUtil, CollectiveGroupOptions
from rlinf_async.errors import ConfigError
from tests._support.fake_nvml import FakeLibrary


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("ACCELERATOR_TYPE", "RLINF_REHEARSAL", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    yield
    AcceleratorUtil._window_is_open = False


def test_the_type_is_the_workers_or_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLibrary.with_four_cards(monkeypatch)
    assert AcceleratorUtil.get_accelerator_type() == AcceleratorType.NV_GPU
    monkeypatch.setenv("ACCELERATOR_TYPE", "NPU")
    assert AcceleratorUtil.get_accelerator_type() == "NPU"
    assert AcceleratorUtil.get_ccl_backend() == "hccl"


def test_devices_are_shown_and_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = AcceleratorUtil.get_accelerator_env_var("NV_GPU", ["2", "GPU-5a"])
    assert variables == {
        "CUDA_VISIBLE_DEVICES": "2,GPU-5a",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NCCL_CUMEM_ENABLE": "0",
    }
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variables["CUDA_VISIBLE_DEVICES"])
    assert AcceleratorUtil.get_visible_devices("NV_GPU") == [2, "GPU-5a"]
    assert AcceleratorUtil.get_accelerator_env_var("NO_ACCEL", []) == {}
    assert AcceleratorUtil.get_visible_devices("NO_ACCEL") == []


def test_makers_whose_workers_exchange_device_memory_are_listed() -> None:
    assert AcceleratorUtil.CCL_SUPPORT_LIST == ["NV_GPU", "AMD_GPU", "MUSA_GPU"]


def test_without_devices_it_is_gloo_and_no_platform() -> None:
    assert AcceleratorUtil.get_ccl_backend("NO_ACCEL") == "gloo"
    assert AcceleratorUtil.get_ccl_socket_ifname_env_var("NO_ACCEL") == "GLOO_SOCKET_IFNAME"
    assert AcceleratorUtil.get_torch_platform("NO_ACCEL") is AcceleratorUtil.get_device_type("NO_ACCEL") is None
    with pytest.raises(ConfigError, match="Unsupported accelerator type 'TPU'"):
        AcceleratorUtil.get_ccl_backend("TPU")


def test_a_platform_is_torchs_own_and_can_always_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    assert AcceleratorUtil.get_torch_platform("NV_GPU") is torch.cuda
    assert AcceleratorUtil.get_device_type("KUNLUN_XPU") == "cuda"
    npu = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    assert AcceleratorUtil.get_torch_platform("NPU") is npu
    assert npu.ipc_collect() is None


def test_a_missing_extension_of_torch_is_an_import_error() -> None:
    with pytest.raises(ImportError, match="torch_musa"):
        AcceleratorUtil.get_torch_platform("MUSA_GPU")


def test_in_a_rehearsal_all_is_computed_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLINF_REHEARSAL", "1")
    assert AcceleratorUtil.get_ccl_backend("NV_GPU") == "gloo"
    assert AcceleratorUtil.get_device_type("NV_GPU") == "cpu"
    platform = AcceleratorUtil.get_torch_platform("NV_GPU")
    platform.set_device(3)
    assert torch.ones(1, device=platform.current_device()).device.type == "cpu"
    assert AcceleratorUtil.get_accel_pg_options("NV_GPU", CollectiveGroupOptions(accel_max_ctas=8)) is None


def test_wishes_for_nccl_are_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    class Options:
        def __init__(self) -> None:
            self.config = SimpleNamespace()

    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    nccl = SimpleNamespace(Options=Options)
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", nccl, raising=False)
    made = AcceleratorUtil.get_accel_pg_options("AMD_GPU", CollectiveGroupOptions(accel_max_ctas=8))
    assert vars(made.config) == {"cga_cluster_size": 4, "max_ctas": 8, "min_ctas": 1}
    assert made.is_high_priority_stream is False
    assert AcceleratorUtil.get_accel_pg_options("NV_GPU", CollectiveGroupOptions()) is None
    assert AcceleratorUtil.get_accel_pg_options("NV_GPU", None) is None
    assert AcceleratorUtil.get_accel_pg_options("NPU", CollectiveGroupOptions(accel_max_ctas=8)) is None


def test_ranges_are_named_while_a_window_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def tell(word: str) -> None:
        told.append(word)

    cuda = SimpleNamespace(
        is_available=lambda: True,
        ipc_collect=None,
        profiler=SimpleNamespace(start=lambda: tell("start"), stop=lambda: tell("stop")),
        nvtx=SimpleNamespace(range_push=tell, range_pop=lambda: tell("pop")),
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    with AcceleratorUtil.profiling_range("NV_GPU", "early"):
        pass
    AcceleratorUtil.start_profiling("NV_GPU")
    with AcceleratorUtil.profiling_range("NV_GPU", "step"):
        pass
    with AcceleratorUtil.profiling_range("NPU", "elsewhere"):
        pass
    AcceleratorUtil.stop_profiling("NV_GPU")
    assert told == ["start", "step", "pop", "stop"]
