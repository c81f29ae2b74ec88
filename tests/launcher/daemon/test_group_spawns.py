"""Requests that start workers of a group, and the group's end, a death or another request between their steps."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from rlinf_async import LaunchError
from rlinf_async._core import operations
from rlinf_launcher.daemon import worker_groups
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.service import DaemonService
from rlinf_launcher.daemon.worker_groups import LocalGroup

from .test_daemon_faults import Forker, attach, new_router, new_service, request

OWNER = 9


def is_open(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return True
    return False


async def opened(service: DaemonService, number: int = 1) -> int:
    return await service.groups.open_store(Requester(OWNER, 1), operations.OpenStore("g", number))


async def close(service: DaemonService, number: int = 1) -> None:
    await service.groups.close(Requester(OWNER, 2), operations.CloseGroup("g", number, 0.0))


async def test_a_spawn_that_fails_leaves_what_others_have_in_the_group(tmp_path: Path) -> None:
    """Of two settings on one node, say, of which one names no interpreter."""
    slow, broken = Forker(), Forker(fail_after=0)
    broken.may.set()
    service = new_service(tmp_path, new_router(), slow)
    good = asyncio.ensure_future(service.groups.spawn(Requester(OWNER, 1), request(1)))
    while not slow.specs:
        await asyncio.sleep(0)
    service.groups._templates.preloaded = lambda *_: contextlib.nullcontext(broken)  # type: ignore[assignment,method-assign]
    with pytest.raises(LaunchError, match="no more workers"):
        await service.groups.spawn(Requester(OWNER, 2), request(1))
    slow.may.set()
    await good
    await close(service)
    assert not psutil.pid_exists(*slow.pids)
    assert service.groups.by_number == {}


async def test_a_group_whose_only_rank_cannot_be_started_again_still_has_its_store_and_ends_as_a_whole(
    tmp_path: Path,
) -> None:
    to, forker = new_router(), Forker(fail_after=1)
    service = new_service(tmp_path, to, forker)
    forker.may.set()
    port = await opened(service)
    await service.groups.spawn(Requester(OWNER, 1), request(1, supervised=True))
    (worker,) = to.endpoints.values()
    os.kill(forker.pids[0], signal.SIGKILL)
    assert worker.process is not None
    await worker.process.ended
    with pytest.raises(LaunchError, match="no more workers"):
        await service.groups.spawn(Requester(OWNER, 2), request(1, supervised=True))
    assert is_open(port)
    await close(service)
    assert not is_open(port)
    assert to.replaced == service.groups.by_number == {}


async def test_a_launch_that_is_given_up_before_its_workers_were_asked_for_leaves_no_store(tmp_path: Path) -> None:
    service = new_service(tmp_path, new_router())
    port = await opened(service)
    await close(service)
    assert not is_open(port)


async def test_a_launch_that_was_given_up_does_not_take_the_store_of_the_next_one(tmp_path: Path) -> None:
    imported, forker = asyncio.Event(), Forker()
    forker.may.set()
    service = new_service(tmp_path, new_router(), forker)

    @contextlib.asynccontextmanager
    async def preloaded(*_: Any) -> AsyncIterator[Any]:
        await imported.wait()
        yield forker

    service.groups._templates.preloaded = preloaded  # type: ignore[assignment,method-assign]
    first = asyncio.ensure_future(service.groups.spawn(Requester(OWNER, 1), request(1)))
    await asyncio.sleep(0)
    await close(service)
    port = await opened(service, 2)
    imported.set()
    with pytest.raises(LaunchError, match="closed while its workers were started"):
        await first
    assert is_open(port)
    assert forker.pids == []
    service.groups.close_stores()


async def test_of_ranks_that_come_back_for_ever_the_latest_ends_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_groups, "_MAX_FORMER", 2)
    to = new_router()
    service, group = new_service(tmp_path, to), LocalGroup(1, "g", OWNER)
    dead = []
    for _ in range(5):
        endpoint, _client = attach(to, "worker")
        endpoint.process = SimpleNamespace(setup=SimpleNamespace(rank=0))  # type: ignore[assignment]
        endpoint.exit_report = b"report"
        group.workers.append(endpoint)
        service.groups._replace_dead(group, [0])
        dead.append(endpoint)
    assert group.former == list(to.replaced.values()) == dead[-2:]
    forgotten: list[int] = []
    monkeypatch.setattr(service.groups, "_forget", forgotten.append)
    await service.groups.close_group(group, 0.0)
    assert forgotten == [endpoint.id for endpoint in dead]


async def test_a_group_that_is_closed_while_it_waits_for_the_end_of_an_earlier_one_is_not_started(
    tmp_path: Path,
) -> None:
    forker = Forker()
    service = new_service(tmp_path, new_router(), forker)
    earlier = service.groups.by_number[1] = LocalGroup(1, "g", OWNER)
    earlier.closed = asyncio.get_running_loop().create_future()
    start = asyncio.ensure_future(service.groups.spawn(Requester(OWNER, 1), request(1, number=2)))
    await asyncio.sleep(0)
    await close(service, 2)
    earlier.closed.set_result(None)
    with pytest.raises(LaunchError, match="closed while its workers were started"):
        await start
    assert forker.specs == []


async def test_a_process_neither_closes_nor_starts_workers_of_another_ones_group(tmp_path: Path) -> None:
    service = new_service(tmp_path, new_router())
    port = await opened(service)
    await service.groups.close(Requester(OWNER + 1, 1), operations.CloseGroup("g", 1, 0.0))
    with pytest.raises(LaunchError, match=r"group 'g' \(number 1\) is another process's, and not 'g'"):
        await service.groups.spawn(Requester(OWNER + 1, 1), request(1))
    assert is_open(port)
    service.groups.close_stores()
