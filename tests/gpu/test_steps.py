"""Each step of the GPU proof with stand-ins on the CPU: it finds nothing where all is well, and a planted fault."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rlinf_async.hardware.cards import Card
from tests.gpu import deaths, examples, large_model, machine, marked, pinning, speed, workers
from tests.gpu.step import Skip, Step

STEP = Step("x")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "DEVICE", "cpu")
    monkeypatch.setenv("RLINF_GPU_PROOF_DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)


# -- a -----------------------------------------------------------------------------------------------------------------


class Runtime:
    """CUDA's, on the CPU; ``refuses`` is what returns an error."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: int(name == self.refuses)


def test_a_kernel_that_lacks_a_seal_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    machine.check_memfd_seals(STEP)
    monkeypatch.setattr(machine.fcntl, "F_ADD_SEALS", machine.fcntl.F_GETFD)
    with pytest.raises(AssertionError):
        machine.check_memfd_seals(STEP)


@pytest.mark.parametrize("refuses", ["", "cudaHostRegister"])
def test_memory_that_cuda_does_not_register_is_told_of(monkeypatch: pytest.MonkeyPatch, refuses: str) -> None:
    monkeypatch.setattr(machine, "need_gpu", lambda: CPU)
    monkeypatch.setattr(machine, "SIZE", 1 << 20)
    monkeypatch.setattr(machine, "cuda_runtime", lambda: Runtime(refuses))
    monkeypatch.setattr(machine, "forget_error", lambda: None)
    if refuses:
        with pytest.raises(AssertionError, match="cudaHostRegister: 1"):
            machine.check_a_sealed_memfd_is_registered_for_writing(STEP)
    else:
        machine.check_a_sealed_memfd_is_registered_for_writing(STEP)


def test_without_a_gpu_its_checks_are_skipped() -> None:
    with pytest.raises(Skip, match="no GPU"):
        machine.check_a_fresh_thread_exports_memory(STEP)


# -- b -----------------------------------------------------------------------------------------------------------------


class Seeing(workers.Pinned):
    """Sees one GPU, as the driver names it; its collective is of the CPU."""

    def look(self) -> dict[str, Any]:
        return {**super().look(), "uuids": ["a0"]}

    def initialize(self) -> torch.Tensor:
        return torch.ones(1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("uuid", "is_right"), [("GPU-a0", True), ("GPU-b1", False)])
def test_a_worker_that_sees_another_gpu_than_its_own_is_told_of(
    monkeypatch: pytest.MonkeyPatch, uuid: str, is_right: bool
) -> None:
    monkeypatch.setattr(pinning, "Pinned", Seeing)
    monkeypatch.setattr(pinning, "read_cards", lambda: (Card(0, uuid, "H100", None),))
    if is_right:
        assert "PCI_BUS_ID" in pinning.check_workers_see_their_own_gpu_and_no_other(STEP)
    else:
        with pytest.raises(AssertionError, match=r"GPU-b1.* sees \['a0'\]"):
            pinning.check_workers_see_their_own_gpu_and_no_other(STEP)


# -- c -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_a_test_that_fails_is_told_of_by_name(tmp_path: Path, fails: bool, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "test_planted.py"
    path.write_text(
        f"import pytest\n@pytest.mark.gpu\ndef test_it():\n    assert not {fails}\ndef test_other():\n    1/0\n"
    )
    if fails:
        with pytest.raises(AssertionError, match="0 passed, 1 failed, 0 skipped"):
            marked.run_marked(STEP, [str(path)])
        # The folders before it depend on where the checkout is.
        assert re.search(r"FAILED  (\S+\.)?test_planted::test_it: assert not True", capsys.readouterr().err)
    else:
        assert marked.run_marked(STEP, [str(path)]) == "1 passed, 0 failed, 0 skipped"


def test_every_file_with_a_test_for_gpus_is_among_those_that_run() -> None:
    names = {Path(path).name for path in marked.marked_files()}
    assert {"test_exchange_devices.py", "test_gpu_weights.py", "test_gpu_links.py", "test_nvidia.py"} <= names


# -- d -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "memory", "why"),
    [
        ("print('done')", 1 << 30, ""),
        ("raise SystemExit('no reward')", 1 << 30, "exit status 1"),
        ("print('done')", 0, "no memory of the GPU was in use"),
    ],
)
def test_an_example_that_fails_or_leaves_the_gpu_alone_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, memory: int, why: str
) -> None:
    (tmp_path / "script.py").write_text(f"import time; time.sleep(0.7)\n{code}\n")
    before = iter([0])
    monkeypatch.setattr(examples, "used", lambda: next(before, memory))
    if why:
        with pytest.raises(AssertionError, match=why):
            examples.run(str(tmp_path / "script.py"), "any", [])
    else:
        assert examples.run(str(tmp_path / "script.py"), "any", []).endswith("1024 MiB; done")


# -- e -----------------------------------------------------------------------------------------------------------------


class Liar(workers.Reader):
    async def read(self, *arguments: Any) -> str:
        return "0" + (await super().read(*arguments))[1:]


@pytest.mark.slow
@pytest.mark.parametrize("reader", [workers.Reader, Liar])
def test_a_reader_with_other_weights_is_told_of(monkeypatch: pytest.MonkeyPatch, reader: type[workers.Reader]) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 1 << 30))
    monkeypatch.setattr(large_model, "shapes_that_fit", lambda *_: {"one": (300, 40), "other": (64,)})
    monkeypatch.setattr(large_model, "Reader", reader)
    check = large_model.by_way("here", "cpu", "cpu", "copy")
    if reader is Liar:
        with pytest.raises(AssertionError, match="other weights"):
            check(STEP)
    else:
        assert check(STEP).endswith("equal by digest")


@pytest.mark.parametrize(("free", "most"), [(80 << 30, 80 << 30), (1000 << 30, 15.3e9), (9 << 30, 1.5 * (1 << 30))])
def test_the_model_is_a_7b_or_what_there_is_room_for(free: int, most: float) -> None:
    nbytes = sum(2 * torch.Size(shape).numel() for shape in large_model.shapes_that_fit(free, 1000 << 30).values())
    assert 0 < nbytes <= min(most, free / 6)


def test_the_digest_sees_two_elements_that_have_changed_places() -> None:
    weights = {"w": torch.arange(64, dtype=torch.int16).view(torch.bfloat16)}
    before = workers.digest(weights)
    weights["w"] = weights["w"].view(torch.int64).flip(0).view(torch.bfloat16)
    assert workers.digest(weights) != before


# -- f -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "status", "why"), [(1, 0, ""), (1, 1, "exit status 1"), (0, 0, "no rows")])
def test_a_bench_that_fails_or_has_no_row_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, status: int, why: str
) -> None:
    row = json.dumps({"case": "gpu_send", "median": 2.5, "unit": "GB/s", "limit": {"name": "a copy", "value": 5}})
    (tmp_path / "planted_bench.py").write_text(f"print({row!r} * {rows})\nraise SystemExit({status})\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    check = speed.rows_of("planted_bench", "gpu")
    if why:
        with pytest.raises(AssertionError, match=why):
            check(STEP)
    else:
        assert check(STEP) == "1 rows"


# -- g -----------------------------------------------------------------------------------------------------------------


def memory_of_workers() -> int:
    """The GPU's memory, for the workers of a run on the CPU: that of all processes below this one."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


@pytest.mark.slow
@pytest.mark.parametrize("is_held", [False, True])
def test_memory_that_stays_after_a_death_is_told_of(monkeypatch: pytest.MonkeyPatch, is_held: bool) -> None:
    monkeypatch.setattr(deaths, "HELD", 1 << 30)
    most = [0]

    def used() -> int:
        most[0] = max(most[0], memory_of_workers())
        return most[0] if is_held else memory_of_workers()

    monkeypatch.setattr(deaths, "used", used)
    monkeypatch.setattr(deaths, "FIVE_SECONDS", 1.0 if is_held else 5.0)
    check = deaths.after_death_of("script")
    if is_held:
        with pytest.raises(AssertionError, match="MiB of the GPU are held after 1 s"):
            check(STEP)
    else:
        assert check(STEP).startswith("free after")
