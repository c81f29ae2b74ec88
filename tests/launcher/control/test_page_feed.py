"""Snapshots for a live page: the last state of a run is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlinf_launcher.control import page_feed
from rlinf_launcher.control.page_feed import PageFeed
from rlinf_launcher.control.run_places import LocalRun
from rlinf_launcher.control.run_snapshot import RunSnapshot
from tests._support.made_run import made_run


async def test_a_run_whose_files_vanish_during_a_snapshot_keeps_its_last_state(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_run(500)
    run = LocalRun(made.run, 0.0, is_alive=True)
    feed = PageFeed(run, [Path("nowhere")], 1.0)

    class Taken(RunSnapshot):
        def recorded(self) -> Any:
            return made

    async def with_files(*_: Any, **__: Any) -> RunSnapshot:
        return Taken(made.run, 0.0)

    async def without_files(*_: Any, **__: Any) -> RunSnapshot:
        run.is_alive = False
        return RunSnapshot(made.run, 0.0)

    monkeypatch.setattr(page_feed, "INTERVAL_S", 0.0)
    monkeypatch.setattr(page_feed, "choose_recorded", lambda *_: LocalRun(run.run, 0.0, is_alive=run.is_alive))
    monkeypatch.setattr(page_feed, "take_snapshot", with_files)
    async with asyncio.timeout(20):
        with feed.watched():
            following = asyncio.ensure_future(feed.follow())
            first = await feed.newer(None)
            monkeypatch.setattr(page_feed, "take_snapshot", without_files)
            await following
            last = await feed.newer(first)
    assert first is not None
    assert last is not None
    assert len(last.processes) == len(first.processes) > 0
    assert not last.sections["summary"]["is_alive"]
