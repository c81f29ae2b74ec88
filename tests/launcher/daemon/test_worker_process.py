"""A worker as the daemon's child, which sleeps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinf_launcher.daemon.fork_server import MARKER
from rlinf_launcher.daemon.worker_process import WorkerProcess, WorkerSetup


class Sleeper:
    """Stands in for a template."""

    async def fork(self, spec: Mapping[str, Any], fds: Sequence[int]) -> int:
        return os.posix_spawn("/bin/sleep", ["sleep", "600"], spec["env"], setpgroup=0)


async def test_a_worker_has_ended_once_it_is_dead_and_not_before(tmp_path: Path) -> None:
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
