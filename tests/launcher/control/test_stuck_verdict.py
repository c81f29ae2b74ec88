"""``rlinf-ctl`` on a run whose driver is blocked, then stopped, and whose daemon is stopped at last."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf_launcher.control.run_places import find_runs
from tests._support.inspected_runs import InspectedRun
from tests._support.standing_runs import daemon_of, stopped

pytestmark = pytest.mark.shared_cluster

PROGRAM = Path(__file__).parents[2] / "_support" / "blocked_driver.py"


@pytest.fixture(scope="module")
def run() -> Iterator[InspectedRun]:
    with InspectedRun(PROGRAM) as run:
        run.wait_for("still", 60)
        time.sleep(0.1)  # the ranks tell what they have answered 5 ms later
        yield run
        assert run.end() == []


def driver_of(run: InspectedRun) -> int:
    report = json.loads(run.ask("status", "--json").stdout)
    return next(int(process["pid"]) for process in report["processes"] if process["role"] == "driver")


def test_a_blocked_driver_is_reported_with_line_age_and_advice(run: InspectedRun) -> None:
    done = run.ask("stuck")
    assert done.returncode == 0, done.stdout
    place = rf"{re.escape(str(PROGRAM))}:\d+ in main\(\)"
    headline = rf"busy: the driver does not run its event loop and sleeps for \d+ s, at {place}$"
    assert re.match(headline, done.stdout, re.MULTILINE), done.stdout
    assert re.search(rf"  -> the event loop of the driver stands still at {place}: .*asyncio\.to_thread", done.stdout)


def test_answered_calls_are_over_even_if_the_driver_is_blocked(run: InspectedRun) -> None:
    status = run.ask("status").stdout
    assert len(re.findall(r"^napper:\d .* - +idle$", status, re.MULTILINE)) == 2, status
    assert "has been asked" not in run.ask("stack", "--all").stdout


def test_a_stopped_driver_is_the_verdict_with_a_fix(run: InspectedRun) -> None:
    pid = driver_of(run)
    with stopped(pid):
        done = run.ask("stuck")
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, "stopped: the driver is stopped")
    assert f"-> kill -CONT {pid} " in done.stdout


def test_a_stopped_daemon_is_named_with_pid_and_fix(run: InspectedRun) -> None:
    (found,) = find_runs([run.folder])
    pid = daemon_of(found, 0)
    with stopped(pid):
        done = run.ask("status", "--timeout", "1")
    assert done.returncode == 3
    assert re.search(rf"did not answer within 0\.\d s: it is stopped: kill -CONT {pid}$", done.stderr, re.MULTILINE)
