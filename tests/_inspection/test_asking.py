"""Verdicts that a run's own driver asks for, and those that follow a word about a long wait."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar

import pytest

from rlinf_async import Cluster, NodePlacementStrategy, Worker, settings
from rlinf_async._inspection import asking
from rlinf_async._inspection.state.run_report import ActivityState, RunReport, Wait
from rlinf_async._waits import slow_waits
from rlinf_async.errors import ClosedError
from rlinf_async.work import Work
from tests._support.made_reports import MadeRun


class Stage(Worker):
    async def exchange(self) -> Any:
        return await self.recv("stage", 1 - self._rank)


class DeafDaemons:
    """A client whose requests are never answered."""

    welcome: ClassVar = {"run": "cafe", "nodes": [{"node": 0, "name": "here"}]}
    endpoint = 1

    def request(self, operation: Any, *, node: int) -> Work[Any]:
        return Work()


async def test_a_daemon_that_does_not_answer_is_missing_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_GRACE_S", -0.9)
    async with asyncio.timeout(5):
        report = await asking.report(DeafDaemons())
    assert list(report.missing) == ["here"]
    assert not report.processes


def test_an_inspection_is_not_among_the_waits_of_a_run() -> None:
    made = MadeRun()
    made.does("driver", ActivityState.WAITING, Wait("request", "Inspect", 0.0, [], left=4.0))
    assert made.processes["driver"].activities
    report = RunReport("cafe", list(made.processes.values()))
    assert not asking._without_askers(report).processes[0].activities


async def test_a_driver_hears_of_a_deadlock_after_a_word_about_its_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    exchanges: list[Any] = []

    class Ends(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if exchanges and "deadlock" in record.getMessage():
                loop.call_soon_threadsafe(exchanges[0].cancel)

    handler = Ends()
    monkeypatch.setenv(settings.WAIT_WARNING_S.variable, "4")
    logging.getLogger(asking.__name__).addHandler(handler)
    try:
        async with asyncio.timeout(120), Cluster(num_nodes=1) as cluster:
            stage = await Stage.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="stage")
            exchanges.append(stage.exchange())
            with pytest.raises(ClosedError, match="was cancelled"):
                await exchanges[0]
    finally:
        logging.getLogger(asking.__name__).removeHandler(handler)
    assert "deadlock: stage:0-1 wait for each other" in caplog.text


def test_a_listener_that_fails_ends_no_wait(caplog: pytest.LogCaptureFixture) -> None:
    class Fails:
        def _on_long_wait(self) -> None:
            raise OSError("no descriptors")

    listener = Fails()
    slow_waits.add_listener(listener)
    slow_waits.warn([(Work(), 0.0, slow_waits.Waiter("task t", "t.py:1 in f()", False))], 60.0)
    assert "no descriptors" in caplog.text
