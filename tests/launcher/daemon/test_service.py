"""Handlers of ``DaemonService`` itself: stuck ranks of a collective, reservations of emulated links."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._core import frames, operations
from rlinf_launcher.daemon.endpoint import Endpoint
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.router import Router
from rlinf_launcher.daemon.service import SharedLinkService, StuckRanks

CALLER = frames.endpoint(0, 99)


@pytest.fixture
def router() -> Iterator[Router]:
    loop = asyncio.new_event_loop()
    yield Router(loop, 0, lambda source, ask, operation, arguments: None)
    loop.close()


@pytest.fixture
def worker(router: Router) -> Endpoint:
    return router.new_endpoint("worker")


async def may_come(router: Router, worker: Endpoint) -> bool:
    operation = operations.OwesCall(worker.number, CALLER, 5, 7)
    return await StuckRanks(router).owes_call(Requester(frames.endpoint(0, 1), 1), operation)


async def test_a_rank_owes_the_call_or_one_after_its_failure(router: Router, worker: Endpoint) -> None:
    for call, expected in [(4, False), (5, True), (6, False), (7, False), (8, True)]:
        worker.pending_calls.add(CALLER, call, 0, "step", 0.0)
        assert await may_come(router, worker) is expected
        worker.pending_calls.complete(CALLER, call)
    worker.pending_calls.add(CALLER + 1, 8, 0, "step", 0.0)
    assert not await may_come(router, worker)


async def test_a_rank_that_is_dead_or_gone_does_not_come(router: Router, worker: Endpoint) -> None:
    worker.pending_calls.add(CALLER, 8, 0, "step", 0.0)
    worker.exit_report = b"report"
    assert not await may_come(router, worker)
    del router.endpoints[worker.number]
    assert not await may_come(router, worker)


@pytest.mark.parametrize(("node", "process"), [(0, None), (1, SimpleNamespace(kill=print))])
async def test_nobody_has_another_process_killed(router: Router, worker: Endpoint, node: int, process: Any) -> None:
    worker.process = process
    requester = Requester(frames.endpoint(node, worker.number), 1)
    with pytest.raises(ValueError, match="only a worker"):
        await StuckRanks(router).kill_stuck(requester, operations.KillStuck("was killed"))


async def test_a_link_is_reserved_only_where_it_carries_something() -> None:
    service = SharedLinkService()
    nobody: Any = None
    assert await service.reserve_lines(nobody, operations.ReserveLines([["cable", 100.0]], 200)) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="more than nothing"):
        await service.reserve_lines(nobody, operations.ReserveLines([["cable", 100.0], ["cut", 0.0]], 200))
