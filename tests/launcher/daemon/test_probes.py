"""Hardware probes in subprocesses."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest

from rlinf_async import settings
from rlinf_async._core import codec, operations
from rlinf_async.errors import ConfigError, LaunchError
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.probe_process import ProbeProcess
from rlinf_launcher.daemon.probes import Probes

GPUS = {"accelerator_type": "NV_GPU", "rehearsed": False, "gpus": [{"id": "0", "model": "H200"}]}
GUESSED = {
    "VISIBLE_DEVICES": "0,1",
    "ISOLATE_ACCELERATOR": "1",
    "LOCAL_ACCELERATOR_RANK": "1",
    "EGL_DEVICE_ID": "0",
    "MUJOCO_EGL_DEVICE_ID": "0",
}


def answering(tmp_path: Path, answer: str) -> Probes:
    """Ask an interpreter with a constant answer."""
    stub = tmp_path / "python"
    stub.write_text(f"#!/bin/sh\ncat > /dev/null\n{answer}\n")
    stub.chmod(0o755)
    return Probes("node0", dict(os.environ))


@pytest.fixture
def reaped() -> Callable[[], Awaitable[None]]:
    """Wait until this process has only the children that it had before the test."""
    before = psutil.Process().children()

    async def wait() -> None:
        async with asyncio.timeout(10):
            while [child for child in psutil.Process().children() if child not in before]:
                await asyncio.sleep(0.001)

    return wait


async def test_a_worker_renders_on_its_own_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(tmp_path, """echo '{"0": 5, "1": 3}'""")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    await asked.find_renderers(GPUS)
    assert (await asked.rendering(GUESSED, GUESSED))["MUJOCO_EGL_DEVICE_ID"] == "5"
    together = {**GUESSED, "ISOLATE_ACCELERATOR": "0"}
    assert (await asked.rendering(together, together))["EGL_DEVICE_ID"] == "3"
    changed = await asked.rendering(GUESSED, {**GUESSED, "MUJOCO_GL": "osmesa"})
    assert not {"EGL_DEVICE_ID", "MUJOCO_EGL_DEVICE_ID"} & set(changed)


async def test_what_is_not_known_stays_as_it_was_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(tmp_path, "echo no graphics >&2; exit 3")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert await asked.rendering(GUESSED, GUESSED) == GUESSED, "nobody has asked"
    await asked.find_renderers({**GPUS, "rehearsed": True})
    await asked.find_renderers(GPUS)
    assert await asked.rendering(GUESSED, GUESSED) == GUESSED


async def test_gpu_use_is_asked_for_only_with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(tmp_path, """echo '{"0": {"percent": 7}}'""")
    assert await asked.device_use(10) == {}
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    await asked.find_renderers(GPUS)
    assert await asked.device_use(10) == {"0": {"percent": 7}}


async def test_a_driver_that_hangs_holds_up_no_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reaped: Callable[[], Awaitable[None]]
) -> None:
    asked = answering(tmp_path, "case $* in *device_use*) exec sleep 60;; esac; echo '{}'")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    await asked.find_renderers(GPUS)
    assert await asked.device_use(0.1) == {}
    await reaped()


async def test_a_probe_that_outlives_its_sigkill_holds_up_nothing_and_is_reaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reaped: Callable[[], Awaitable[None]]
) -> None:
    asked = answering(tmp_path, "exec sleep 1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: None)
    asked._gpus, before = ["0"], time.monotonic()
    descriptors = os.listdir("/proc/self/fd")
    assert await asked.device_use(0.1) == {}
    assert time.monotonic() - before < 0.8
    await reaped()
    assert os.listdir("/proc/self/fd") == descriptors


def inventory(folder: Path, module: str = "", sections: Any = ()) -> operations.FindHardware:
    return operations.FindHardware(0, list(sections), [str(folder)], module, None)


async def test_an_inventory_brings_the_kinds_own_classes(tmp_path: Path) -> None:
    asked = Probes("node0", dict(os.environ))
    sections = [{"type": "Franka", "configs": [{"node_rank": 0, "robot_ip": "10.0.0.2"}]}]
    pickled, warning = await asked.inventory(Requester(0, 0), inventory(tmp_path, "gone", sections))
    (resource,) = codec.decode(b"\0" + bytes.fromhex(pickled))
    assert (resource.type, resource.infos[0].config.robot_ip) == ("Franka", "10.0.0.2")
    assert warning.startswith("on node0: the extension module 'gone' (RLINF_EXT_MODULE) is not loaded: ModuleNotFound")


async def test_an_extension_is_found_in_the_shipped_folder(tmp_path: Path) -> None:
    (tmp_path / "shipped.py").write_text("def register():\n    pass\n")
    asked = Probes("node0", dict(os.environ), lambda path: path.replace("/of/the/driver", str(tmp_path)))
    _, warning = await asked.inventory(Requester(0, 0), inventory(Path("/of/the/driver"), "shipped"))
    assert warning == ""


async def test_a_bad_section_is_an_error_that_names_the_node(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="on node0: Unsupported hardware type 'Frank' "):
        await Probes("node0", dict(os.environ)).inventory(
            Requester(0, 0), inventory(tmp_path, sections=[{"type": "Frank", "configs": []}])
        )


async def test_a_probe_that_dies_or_hangs_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reaped: Callable[[], Awaitable[None]]
) -> None:
    (tmp_path / "abrupt.py").write_text("import os, sys\nsys.stderr.write('boom\\n')\nsys.stderr.flush()\nos._exit(9)")
    (tmp_path / "endless.py").write_text(dedent("import signal\nsignal.pause()"))
    asked = Probes("node0", dict(os.environ))
    with pytest.raises(LaunchError, match=r"no answer about the hardware of node0 \(exit code 9\): boom"):
        await asked.inventory(Requester(0, 0), inventory(tmp_path, "abrupt"))
    monkeypatch.setenv(settings.HARDWARE_PROBE_TIMEOUT_S.variable, "0.5")
    with pytest.raises(LaunchError, match=r"no answer about the hardware of node0 within 0.5 s"):
        await asked.inventory(Requester(0, 0), inventory(tmp_path, "endless"))
    await reaped()


async def test_a_probe_has_its_own_session_without_terminal_signals() -> None:
    probe = ProbeProcess([sys.executable, "-Sc", "import os; print(os.getsid(0) == os.getpid())"], "", dict(os.environ))
    try:
        assert await probe.answer() == ("True\n", "", 0)
    finally:
        probe.close()


@pytest.mark.parametrize(("call", "before"), [("memfd_create", 2), ("pidfd_open", 0)])
async def test_a_probe_without_descriptors_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, before: int
) -> None:
    probes = answering(tmp_path, "{}")
    probes._gpus = ["0"]
    real, left = getattr(os, call), [None] * before

    def limited(*words: Any) -> int:
        if not left:
            raise OSError(errno.EMFILE, "Too many open files")
        left.pop()
        return int(real(*words))

    monkeypatch.setattr(os, call, limited)
    descriptors, children = os.listdir("/proc/self/fd"), psutil.Process().children()
    assert await probes.device_use(5) == {}
    assert os.listdir("/proc/self/fd") == descriptors
    assert psutil.Process().children() == children
