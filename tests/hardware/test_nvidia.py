"""NVIDIA GPUs: found through the driver's library, chosen by the user's list of visible devices."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pynvml
import pytest

from rlinf_async.errors import ConfigError
from rlinf_async.hardware import Device, find_accelerators
from rlinf_async.hardware.nvidia import read_cards, read_use
from tests._support.fake_nvml import FakeLibrary


@pytest.fixture
def four_cards(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    return FakeLibrary.with_four_cards(monkeypatch)


def found(*arguments: Any, **options: Any) -> tuple[Device, ...]:
    return find_accelerators(*arguments, **options).devices


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)


def ids(visible: str | None = None, wanted: list[str] | None = None) -> list[str]:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return [gpu.id for gpu in found(environ, wanted)]


def test_all_cards_are_found_a_cut_one_as_its_slices(four_cards: FakeLibrary) -> None:
    assert found({}) == (
        Device("0", "H200"),
        Device("1", "H200"),
        Device("2", "H200"),
        Device("MIG-1", "H200"),
        Device("MIG-2", "H200"),
    )
    assert four_cards.open == 0, "the library is closed again"


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("0,2", ["0", "2"]),
        ("2, 0", ["2", "0"]),
        ("GPU-aa22,GPU-b", ["GPU-aa22", "GPU-b"]),
        ("MIG-2", ["MIG-2"]),
        ("MIG-GPU-cc/1/0", ["MIG-GPU-cc/1/0"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,1", ["0"]),
        ("1,9,0", ["1"]),
        ("GPU-aa,0", []),
        ("0,0", []),
        ("1,01", []),
        ("MIG-1,MIG-2", ["MIG-1", "MIG-2"]),
        ("9" * 5000, []),
    ],
)
def test_a_list_of_visible_devices_is_honoured_as_cuda_would(
    four_cards: FakeLibrary, visible: str, seen: list[str]
) -> None:
    assert ids(visible) == seen


def test_the_hosts_file_wins_over_the_variable(four_cards: FakeLibrary) -> None:
    assert ids("0", ["1", "MIG-2"]) == ["1", "MIG-2"]
    assert ids("0", []) == []


def test_a_device_that_the_hosts_file_names_must_be_there(four_cards: FakeLibrary) -> None:
    with pytest.raises(ConfigError, match="names GPU 9, which this node does not have; it has: 0, 1, 2, MIG-1"):
        ids(None, ["0", "9"])


@pytest.mark.usefixtures("no_driver")
def test_two_names_of_one_device_are_no_two_devices(four_cards: FakeLibrary) -> None:
    uuid = read_cards()[1].uuid
    assert ids(f"1,{uuid}") == []
    with pytest.raises(ConfigError, match=f"gpus=1,{uuid} names a GPU twice, the second time by {uuid}\n  fix: name"):
        ids(wanted=["1", uuid])


def test_without_a_driver_there_are_quietly_no_gpus(caplog: pytest.LogCaptureFixture) -> None:
    assert found({}) == found({"CUDA_VISIBLE_DEVICES": "0"}) == ()
    assert not caplog.records
    with pytest.raises(ConfigError, match=r"it has: none \(or no driver\)"):
        found({}, ["0"])


def test_a_driver_that_does_not_answer_leaves_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    assert found({}) == ()
    assert "does not answer" in caplog.text


@pytest.mark.parametrize(("order", "warned"), [("FASTEST_FIRST", True), ("PCI_BUS_ID", False), (None, False)])
def test_another_order_than_the_drivers_is_not_followed_and_says_so(
    four_cards: FakeLibrary, caplog: pytest.LogCaptureFixture, order: str | None, warned: bool
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "1,0"} | ({} if order is None else {"CUDA_DEVICE_ORDER": order})
    assert [device.id for device in found(environ)] == ["1", "0"]
    assert ("CUDA_DEVICE_ORDER=FASTEST_FIRST is not followed" in caplog.text) == warned


@pytest.mark.usefixtures("four_cards")
def test_the_nodes_of_these_tests_have_no_gpus_whatever_the_machine_has() -> None:
    assert found(os.environ) == ()


def test_a_lost_card_is_left_out_and_the_others_keep_their_index(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library = FakeLibrary([("lost", None), ("GPU-b", None)]).install(monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert [card.index for card in read_cards()] == [1]
    assert "GPU 0 is left out" in caplog.text
    assert library.open == 0


def test_the_use_of_devices_is_told_by_id_as_far_as_it_is_known(four_cards: FakeLibrary) -> None:
    memory = {"used": 3 << 30, "memory": 80 << 30}
    assert read_use(["0", "MIG-2", "GPU-gone"]) == {"0": {**memory, "percent": 97}, "MIG-2": memory}
    assert four_cards.open == 0


@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_no_use_is_known() -> None:
    assert read_use(["0"]) == {}


@pytest.mark.usefixtures("no_driver")
def test_fake_gpus_need_no_driver() -> None:
    assert found({"CUDA_VISIBLE_DEVICES": ""}, fake=2) == (Device("0", "fake"), Device("1", "fake"))


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA driver here")
def test_a_real_driver_tells_of_its_cards() -> None:
    cards = read_cards()
    assert cards
    assert all(card.uuid.startswith("GPU-") and card.model for card in cards)
    assert all(use["memory"] > 0 for use in read_use([str(card.index) for card in cards]).values())
