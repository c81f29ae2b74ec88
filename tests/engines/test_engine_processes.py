"""``EngineProcesses``: the end of a child is told with its cause, and a stopped one is told by its state."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from rlinf_async.engines.engine_processes import EngineProcesses


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child
        child.kill()


async def test_a_killed_child_is_told_with_its_signal(child: subprocess.Popen[bytes]) -> None:
    processes = EngineProcesses("llm:0")
    processes.add(child.pid, "vLLM's worker 1")
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=rf"vLLM's worker 1 \(pid {child.pid}\) of llm:0 was killed by SIGKILL"):
        await processes.ended()
    processes.close()


async def test_an_exit_is_told_with_its_code() -> None:
    processes = EngineProcesses("llm:0")
    with subprocess.Popen(["sh", "-c", "exit 3"]) as child:
        processes.add(child.pid, "the server")
        with pytest.raises(RuntimeError, match="of llm:0 exited with code 3"):
            await processes.ended()
    processes.close()


async def test_a_process_that_is_gone_already_has_ended(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    processes = EngineProcesses("llm:0")
    processes.add(child.pid, "the server")
    with pytest.raises(RuntimeError, match="has ended"):
        await processes.ended()
    processes.close()


async def test_a_stopped_child_is_described(child: subprocess.Popen[bytes]) -> None:
    processes = EngineProcesses("llm:0")
    processes.add(child.pid, "the server")
    processes.add(child.pid, "a second name")
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert processes.describe() == f"the server (pid {child.pid}) is stopped"
    processes.close()
    processes.close()


async def test_kill_ends_a_stopped_process_and_passes_over_dead_ones(child: subprocess.Popen[bytes]) -> None:
    processes = EngineProcesses("llm:0")
    with subprocess.Popen(["true"]) as dead:
        processes.add(dead.pid, "the scheduler")
    processes.add(child.pid, "the server")
    os.kill(child.pid, signal.SIGSTOP)
    processes.kill()
    assert child.wait(10) == -signal.SIGKILL
    processes.close()
