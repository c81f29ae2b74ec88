"""Answers of a daemon to operators."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlinf_async._core import frames, operations
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.operator_requests import OperatorRequests
from rlinf_launcher.daemon.router import Router
from rlinf_launcher.daemon.worker_process import WorkerProcess, WorkerSetup


async def test_details_are_of_live_processes_and_returning_ranks(tmp_path: Path) -> None:
    router = Router(asyncio.get_running_loop(), 0, lambda *_: None)
    living, operator, dead, away = (router.new_endpoint(role) for role in ("driver", "operator", "worker", "worker"))
    for endpoint in (living, operator, dead, away):
        endpoint.pid = os.getpid()
    dead.exit_report, away.exit_report = frames.pack({}), frames.pack({"returns": True})
    templates: Any = SimpleNamespace(status=lambda: {"templates": []})
    requests = OperatorRequests(router, None, templates, "here", tmp_path)  # type: ignore[arg-type]
    details = await requests.node_details(Requester(operator.id, 1), operations.NodeDetails(devices=False))
    assert details["processes"].keys() == {str(living.id), str(away.id)}
    assert details["processes"][str(away.id)] == {"away": True}
    assert details["processes"][str(living.id)]["memory"] > 0
    assert details["processes"][str(living.id)]["restarts"] == 0


async def test_a_worker_that_is_not_yet_forked_is_not_reported_killed(tmp_path: Path) -> None:
    router = Router(asyncio.get_running_loop(), 0, lambda *_: None)
    worker = router.new_endpoint("worker")
    worker.process = WorkerProcess(asyncio.get_running_loop(), WorkerSetup("w", 0, "w:0", {}), "here", tmp_path)
    requests = OperatorRequests(router, None, None, "here", tmp_path)  # type: ignore[arg-type]
    assert await requests.kill_ranks(Requester(1, 1), operations.KillRanks([worker.number], "")) == []
