"""A worker as the daemon's child; here a process that sleeps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from rlinf_launcher.daemon import worker_groups
from rlinf_launcher.daemon.fork_server import MARKER
from rlinf_launcher.daemon.worker_process import WorkerProcess, WorkerSetup


class Sleeper:
    """Replacement of a template."""

    async def fork(self, spec: Mapping[str, Any], fds: Sequence[int]) -> int:
        return os.posix_spawn("/bin/sleep", ["sleep", "600"], spec["env"], setpgroup=0)


class Ending:
    """Replacement of a process that ends only by SIGKILL; a stopped one has an odd pid."""

    setup = SimpleNamespace(name="g:0")
    exit_status: str | None = None

    def __init__(self, pid: int, killed: list[int]) -> None:
        self.pid = pid
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._killed = killed

    def kill(self) -> None:
        self._killed.append(self.pid)
        self.exit_status = "killed"
        self.ended.set_result(None)


async def test_a_stopped_worker_is_killed_after_the_grace_for_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(worker_groups, "is_stopped", lambda pid: pid % 2 == 1)
    monkeypatch.setattr(worker_groups, "state_of", lambda pid, _: f"state of {pid}")
    async with asyncio.timeout(10):
        await worker_groups._end([Ending(2, killed), Ending(3, killed)], 0.05)  # type: ignore[list-item]
    assert killed == [3, 2]


async def test_a_worker_has_ended_once_it_is_dead(tmp_path: Path) -> None:
    spec = {"env": {MARKER: "token"}, "token": "token"}
    process = WorkerProcess(asyncio.get_running_loop(), WorkerSetup("g", 0, "g:0", spec), "here", tmp_path)
    deaths: list[str] = []
    near = await process.start(Sleeper(), lambda: deaths.append(str(process.exit_status)))
    try:
        process._died(lambda: deaths.append("it was woken for nothing"))
        assert (deaths, process.exit_status) == ([], None)
    finally:
        process.kill()
        async with asyncio.timeout(10):
            exit_status = await process.ended
        near.close()
    assert exit_status.signal == "SIGKILL"
    assert deaths == [str(exit_status)]


async def test_a_death_is_told_whatever_of_its_cleanup_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"env": {MARKER: "token"}, "token": "token"}
    process = WorkerProcess(asyncio.get_running_loop(), WorkerSetup("g", 0, "g:0", spec), "here", tmp_path)
    died = asyncio.Event()
    near = await process.start(Sleeper(), died.set)
    end, first = process._leftovers.end, process._outputs[0]
    monkeypatch.setattr(process._leftovers, "end", Mock(side_effect=OSError("unreadable")))
    monkeypatch.setattr(first, "_write_log", Mock(side_effect=OSError("unwritable")))
    process.kill()
    try:
        async with asyncio.timeout(5):
            await died.wait()
        assert not process._outputs[1]._open
    finally:
        end()
        near.close()
