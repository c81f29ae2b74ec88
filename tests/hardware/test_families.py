"""Each maker's accelerators: found in the kernel's files, hidden and shown by the maker's own variable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlinf_async.errors import ConfigError
from rlinf_async.hardware import (
    FAMILIES,
    AcceleratorFamily,
    Accelerators,
    AcceleratorType,
    Device,
    find_accelerators,
    get_family,
    register_accelerator,
)
from rlinf_async.hardware.cards import Card
from tests._support.fake_nvml import FakeLibrary

PCI = "sys/bus/pci/devices"
KFD = "sys/class/kfd/kfd/topology/nodes"
VGA, DISPLAY, SOUND, PROCESSING = "0x030000", "0x038000", "0x040300", "0x120000"

Machine = Callable[[dict[str, str]], Path]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Makes a machine out of files; without NVIDIA's driver, whatever this machine has."""

    def build(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return build


@pytest.fixture(autouse=True)
def no_nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLibrary([]).install(monkeypatch)


def pci(address: str, vendor: str, device: str, pci_class: str) -> dict[str, str]:
    folder = f"{PCI}/{address}"
    return {f"{folder}/vendor": vendor, f"{folder}/device": device, f"{folder}/class": pci_class}


def kfd(number: int, simds: int, version: int = 90402, unique: int = 0) -> dict[str, str]:
    text = f"cpu_cores_count 0\nsimd_count {simds}\ngfx_target_version {version}\nunique_id {unique}\n"
    return {f"{KFD}/{number}/properties": text}


AMD = kfd(0, 0) | kfd(1, 304, unique=0xA1B2) | kfd(2, 304, unique=0xC3D4) | kfd(10, 304, 90010)
INTEL = (
    pci("0000:00:02.0", "0x8086", "0x4680", VGA)
    | pci("0000:3a:00.0", "0x8086", "0x0bd5", DISPLAY)
    | pci("0000:9a:00.0", "0x8086", "0x0bd5", DISPLAY)
    | pci("0000:00:1f.3", "0x8086", "0x7ad0", SOUND)
)
ASCEND = {f"dev/davinci{n}": "" for n in (0, 1, 10, 2)} | {"dev/davinci_manager": ""}
ASCEND |= pci("0000:c1:00.0", "0x19e5", "0xd802", PROCESSING)
MUSA = pci("0000:01:00.0", "0x1ed5", "0x0327", VGA) | pci("0000:01:00.1", "0x1ed5", "0x03ff", SOUND)
KUNLUN = {"dev/xpu0": "", "dev/xpu1": "", "dev/xpuctrl": ""}


@pytest.mark.parametrize(
    ("files", "kind", "devices"),
    [
        pytest.param(AMD, "AMD_GPU", [("0", "gfx942"), ("1", "gfx942"), ("2", "gfx90a")], id="AMD"),
        pytest.param(INTEL, "INTEL_GPU", [("0", "0bd5"), ("1", "0bd5")], id="Intel, integrated graphics left out"),
        pytest.param(ASCEND, "NPU", [(n, "Ascend910B") for n in ("0", "1", "2", "10")], id="Ascend"),
        pytest.param(MUSA, "MUSA_GPU", [("0", "0327")], id="MUSA"),
        pytest.param(KUNLUN, "KUNLUN_XPU", [("0", "Kunlun"), ("1", "Kunlun")], id="Kunlun"),
        pytest.param({}, "NO_ACCEL", [], id="none"),
    ],
)
def test_a_makers_devices_are_counted(
    machine: Machine, files: dict[str, str], kind: str, devices: list[tuple[str, str]]
) -> None:
    found = find_accelerators({}, root=machine(files))
    assert found == Accelerators(kind, tuple(Device(*device) for device in devices))
    assert found.model == (f"{kind}:{devices[0][1]}" if devices else "")


def test_the_first_family_with_devices_is_the_nodes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLibrary([("GPU-a", None)]).install(monkeypatch)
    root = machine(INTEL | KUNLUN)
    assert find_accelerators({}, root=root).type == "NV_GPU"
    assert find_accelerators({"CUDA_VISIBLE_DEVICES": ""}, root=root) == Accelerators(), "hidden is not absent"


@pytest.mark.parametrize(
    ("files", "environ", "ids"),
    [
        (AMD, {"HIP_VISIBLE_DEVICES": "2,0"}, ["2", "0"]),
        (AMD, {"HIP_VISIBLE_DEVICES": "GPU-000000000000c3d4"}, ["GPU-000000000000c3d4"]),
        (AMD, {"HIP_VISIBLE_DEVICES": "0,7,1"}, ["0"]),
        (AMD, {"ROCR_VISIBLE_DEVICES": "2,1"}, ["0", "1"]),
        (AMD, {"ROCR_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "0,1"}, ["0"]),
        (AMD, {"CUDA_VISIBLE_DEVICES": ""}, ["0", "1", "2"]),
        (INTEL, {"ONEAPI_DEVICE_SELECTOR": "level_zero:1"}, ["1"]),
        (INTEL, {"ONEAPI_DEVICE_SELECTOR": "opencl:cpu;level_zero:gpu"}, ["0", "1"]),
        (INTEL, {"ONEAPI_DEVICE_SELECTOR": "*:*"}, ["0", "1"]),
        (INTEL, {"ONEAPI_DEVICE_SELECTOR": "opencl:*"}, []),
        (INTEL, {"ONEAPI_DEVICE_SELECTOR": "!level_zero:*"}, []),
        (ASCEND, {"ASCEND_RT_VISIBLE_DEVICES": "10,0"}, ["10", "0"]),
        (MUSA, {"MUSA_VISIBLE_DEVICES": "-1"}, []),
        (KUNLUN, {"CUDA_VISIBLE_DEVICES": "1"}, ["1"]),
    ],
)
def test_the_users_list_of_visible_devices_is_honoured(
    machine: Machine, files: dict[str, str], environ: dict[str, str], ids: list[str]
) -> None:
    assert [device.id for device in find_accelerators(environ, root=machine(files)).devices] == ids


@pytest.mark.parametrize(
    ("kind", "visible", "variables"),
    [
        (
            "NV_GPU",
            ["0", "GPU-5"],
            {"CUDA_VISIBLE_DEVICES": "0,GPU-5", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NCCL_CUMEM_ENABLE": "0"},
        ),
        ("AMD_GPU", ["3"], {"HIP_VISIBLE_DEVICES": "3"}),
        ("INTEL_GPU", ["0", "1"], {"ONEAPI_DEVICE_SELECTOR": "level_zero:0,1"}),
        ("INTEL_GPU", [], {"ONEAPI_DEVICE_SELECTOR": "!level_zero:*"}),
        ("NPU", ["4"], {"ASCEND_RT_VISIBLE_DEVICES": "4"}),
        ("MUSA_GPU", [], {"MUSA_VISIBLE_DEVICES": ""}),
        ("KUNLUN_XPU", ["0"], {"CUDA_VISIBLE_DEVICES": "0"}),
    ],
)
def test_a_process_is_shown_its_devices_and_no_other(kind: str, visible: list[str], variables: dict[str, str]) -> None:
    family = get_family(kind)
    assert family is not None
    assert family.get_variables(visible) == variables
    assert family.read_variables(variables) == visible


@pytest.mark.parametrize(
    ("kind", "backend", "nic", "platform", "directly"),
    [
        ("NV_GPU", "nccl", "NCCL_SOCKET_IFNAME", "cuda", True),
        ("AMD_GPU", "nccl", "NCCL_SOCKET_IFNAME", "cuda", True),
        ("INTEL_GPU", "ccl", "CCL_MNIC_NAME", "xpu", False),
        ("NPU", "hccl", "HCCL_SOCKET_IFNAME", "npu", False),
        ("MUSA_GPU", "mccl", "MCCL_SOCKET_IFNAME", "musa", True),
        ("KUNLUN_XPU", "bkcl", "BKCL_SOCKET_IFNAME", "cuda", False),
    ],
)
def test_what_a_family_needs_of_torch_and_the_network(
    kind: str, backend: str, nic: str, platform: str, directly: bool
) -> None:
    family = get_family(kind)
    assert family is not None
    assert (family.collective_backend, family.nic_variable, family.torch_platform) == (backend, nic, platform)
    assert family.sends_directly is directly


def test_every_family_of_the_enumeration_is_there_and_others_are_an_error() -> None:
    assert {*FAMILIES, "NO_ACCEL"} == {str(kind) for kind in AcceleratorType}
    assert get_family("NO_ACCEL") is get_family("") is None
    with pytest.raises(ConfigError, match=r"Unsupported accelerator type 'TPU'; known are: NV_GPU, AMD_GPU"):
        get_family("TPU")


def test_a_family_of_the_users_own_is_searched_for_last(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_async.hardware.families.FAMILIES", dict(FAMILIES))
    from rlinf_async.hardware import families

    class Abacus(AcceleratorFamily):
        type = "ABACUS"
        visibility_variable = "ABACUS_VISIBLE"
        collective_backend = "gloo"
        nic_variable = "GLOO_SOCKET_IFNAME"
        torch_platform = "cpu"

        def read_cards(self, root: Path) -> list[Card]:
            return [Card(number, "", "ten beads") for number in range(2)]

    register_accelerator(Abacus)
    assert list(families.FAMILIES)[-1] == "ABACUS"
    found = find_accelerators({"ABACUS_VISIBLE": "1"}, root=machine({}))
    assert found == Accelerators("ABACUS", (Device("1", "ten beads"),))
    assert find_accelerators({}, root=machine(KUNLUN)).type == "KUNLUN_XPU"


def test_the_hosts_file_can_name_any_makers_devices(machine: Machine) -> None:
    root = machine(ASCEND)
    assert [device.id for device in find_accelerators({}, ["2"], root=root).devices] == ["2"]
    with pytest.raises(ConfigError, match="names GPU 3, which this node does not have; it has: 0, 1, 2, 10"):
        find_accelerators({}, ["3"], root=root)
