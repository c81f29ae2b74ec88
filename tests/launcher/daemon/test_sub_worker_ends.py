"""Ends of workers' subprocesses that a daemon keeps."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlinf_launcher.daemon import sub_workers as module
from rlinf_launcher.daemon.endpoint import Endpoint
from rlinf_launcher.daemon.router import Router
from rlinf_launcher.daemon.sub_workers import SubWorkers


def attached(router: Router, sub_workers: SubWorkers, root: Endpoint) -> Endpoint:
    endpoint = router.new_endpoint("driver")
    endpoint.root, endpoint.name, endpoint.pid = root, "g:0:1", 1 << 30
    sub_workers._by_worker.setdefault(root.number, []).append(endpoint)
    return endpoint


def test_a_process_with_an_undecodable_name_has_its_end_told() -> None:
    pid = os.fork()
    if pid == 0:
        Path("/proc/self/comm").write_bytes(b"\xd0")
        os._exit(3)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert module._verdict_on(pid) == {"verdict": "exited with code 3", "signal": None, "exit_code": 3}
    os.waitpid(pid, 0)
    assert "and lives on" in module._verdict_on(os.getpid())["verdict"]


async def test_a_process_without_a_parent_here_is_not_below_a_worker_that_is_not_forked_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_parent_of", lambda pid: 0)  # as of a process that `docker exec` has started
    router = Router(asyncio.get_running_loop(), 0, lambda *_: None)
    router.new_endpoint("worker").process = SimpleNamespace(pid=0, exit_status=None)  # type: ignore[assignment]
    assert SubWorkers(router, "here")._ancestor(os.getpid()) is None


async def test_the_latest_ends_below_a_live_worker_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_KEPT_ENDS", 2)
    router = Router(asyncio.get_running_loop(), 0, lambda *_: None)
    sub_workers, root = SubWorkers(router, "here"), router.new_endpoint("worker")
    root.process = SimpleNamespace(closing=False, stderr_tail=list, log_path="")  # type: ignore[assignment]
    living, late, *ended = [attached(router, sub_workers, root) for _ in range(6)]
    for each in ended:
        sub_workers.end(each)
    assert list(router.endpoints.values()) == [root, living, late, *ended[-2:]]
    sub_workers.forget(root)
    sub_workers.end(late)
    assert list(router.endpoints.values()) == [root, living]
