"""What the router allows, as plain state."""

from __future__ import annotations

import asyncio

import pytest

from launcher import router as routers
from launcher.router import Router


def test_so_many_workers_at_a_time_answer_past_the_daemon_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routers, "MOST_SHORTCUTS", 2)
    loop = asyncio.new_event_loop()
    router = Router(loop, 0, lambda source, ask, operation, arguments: None)
    workers = [router.new_endpoint("worker") for _ in range(3)]
    assert [router.grant_shortcuts(worker) for worker in workers] == [True, True, False]
    del router.endpoints[workers[0].number]
    assert router.grant_shortcuts(router.new_endpoint("worker"))
    assert not router.grant_shortcuts(router.new_endpoint("worker"))
    loop.close()
