"""Bundles of real runs: of one that stands still, of one that was killed whole, of those that fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlinf_async._core import operations
from rlinf_async._recorder.state.event_ring import EventKind, Phase
from rlinf_async.errors import LaunchError
from rlinf_launcher.cli.control import main
from rlinf_launcher.control.attachment import attached
from rlinf_launcher.control.bundle_file import read_bundle
from rlinf_launcher.control.recorded_run import RecordedRun
from rlinf_launcher.control.run_places import LocalRun, find_runs
from rlinf_launcher.control.run_snapshot import RunSnapshot
from rlinf_launcher.control.snapshot_taking import fetch_files, take_snapshot
from tests._support.standing_runs import CHECKOUT, standing_run, stopped

pytestmark = pytest.mark.shared_cluster

RANKS = {"driver", "rollout:0", "rollout:1"}

DYING = """
import asyncio, os, sys
from rlinf_async import Cluster, Worker
class Dying(Worker):
    def die(self):
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(3)
async def main():
    async with Cluster() as cluster:
        group = Dying.create_group().launch(cluster, name="actor"); await group.die()
asyncio.run(main())
"""
ENDLESS = DYING.replace("group.die()", "asyncio.Event().wait()")


def places() -> list[Path]:
    return [Path(os.environ["XDG_RUNTIME_DIR"])]


def bundle(path: Path, *words: str) -> RecordedRun:
    """What the command has kept."""
    assert main(["--run-dir", str(places()[0]), "bundle", "--output", str(path), *words]) == 0
    return read_bundle(path).recorded()


def open_operations(run: RecordedRun) -> dict[str, set[tuple[EventKind, str]]]:
    """By process: what has begun and not ended."""
    found = {}
    for ring in run.rings:
        ended = {event.operation for event in ring.events if event.phase in (Phase.END, Phase.FAILED)}
        begun = [event for event in ring.events if event.phase == Phase.BEGIN and event.operation not in ended]
        found[ring.identity["process"]] = {(event.kind, event.name) for event in begun}
    return found


STANDING = {
    "driver": {(EventKind.CALL, "rollout.stand")},
    "rollout:0": {(EventKind.SERVE, "stand")},
    "rollout:1": {(EventKind.SERVE, "stand")},
}


@pytest.fixture(scope="module")
def launcher() -> Iterator[subprocess.Popen[str]]:
    """Of a run with two nodes and a rank on each; the driver's loop is blocked."""
    with standing_run("--local-nodes", "2", "--fake-gpus", "1") as launcher:
        yield launcher


@pytest.fixture(scope="module")
def run(launcher: subprocess.Popen[str]) -> LocalRun:
    return find_runs(places())[-1]


def test_a_live_run_is_kept_with_a_stopped_rank_and_a_blocked_driver(
    run: LocalRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = json.loads((run.logs / "recorder/groups-0.jsonl").read_text()) if run.logs else {}
    with stopped(group["workers"][0]["pid"]):
        kept = bundle(tmp_path / "live.zip", run.run)
    out = capsys.readouterr().out
    assert re.fullmatch(rf"\S+/live.zip: run {run.run} \(alive\), 3 flight recorders, \S+ kB\n", out)
    assert kept.is_alive
    assert kept.missing == {}
    assert open_operations(kept) == STANDING
    assert kept.status is not None
    assert {process["name"] for process in kept.status["processes"]} == RANKS
    assert kept.verdict is not None
    assert kept.verdict["verdict"]["kind"]
    assert "\x1b[31mrank\x1b[0m" in kept.logs["rollout/rank_0.out"]
    assert [(node["name"], node["groups"][0]["group"]) for node in kept.nodes] == [
        ("local0", "rollout"), ("local1", "rollout"),
    ]  # fmt: skip


async def test_files_of_another_machine_come_by_its_daemon_and_no_others_do(run: LocalRun) -> None:
    here = LocalRun(run.run, run.since, {0: run.sockets[0]}, is_alive=True)
    snapshot = RunSnapshot(run.run, 0.0)
    async with attached(here, 10) as attachment:
        await fetch_files(attachment, snapshot)
        for path in ("../../secret", "/etc/passwd", "rollout"):
            with pytest.raises(LaunchError, match="is no file of a run"):
                await attachment.request(operations.ReadRunFile(path, 0, 10), 1)
    near = await take_snapshot(run, 10, wants_verdict=False)
    assert snapshot.missing == {}
    assert snapshot.files.keys() == near.files.keys()
    assert open_operations(snapshot.recorded()) == STANDING


def test_a_run_of_which_every_process_was_killed_is_told_by_its_files(
    launcher: subprocess.Popen[str], run: LocalRun, tmp_path: Path
) -> None:
    """The last one of this run: it ends what the others look at."""
    processes = [psutil.Process(launcher.pid), *psutil.Process(launcher.pid).children(recursive=True)]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none hears of another's end
        for process in processes:
            process.send_signal(number)
    psutil.wait_procs(processes[1:], 10)
    launcher.wait(10)
    kept = bundle(tmp_path / "dead.zip", run.run[:6])
    assert (kept.is_alive, kept.status, kept.verdict, kept.missing) == (False, None, None, {})
    assert open_operations(kept) == STANDING
    assert kept.logs["rollout/rank_1.err"] == "trouble\n"
    for socket in run.sockets.values():
        shutil.rmtree(socket.parents[1], ignore_errors=True)
    assert run.logs is not None
    assert open_operations(bundle(tmp_path / "dead.zip", str(run.logs))) == STANDING


def launched(tmp_path: Path, script: str, *words: str, **environ: str) -> tuple[int, str, Path]:
    """Exit code, what the launcher said, and the bundle that it has kept."""
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "rlinf_launcher", *words, str(tmp_path / "train.py")]
    environ = {**os.environ, "PYTHONPATH": str(CHECKOUT), **environ}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    told = re.search(r"a bundle of the run: (\S+) \(rlinf-ctl page \1 shows it\)\n", done.stderr)
    assert told, done.stderr
    return done.returncode, done.stderr, Path(told[1])


@pytest.mark.slow
def test_a_run_that_fails_is_kept_beside_its_logs_and_can_be_kept_again(tmp_path: Path, capsys: Any) -> None:
    code, told, path = launched(tmp_path, DYING)
    assert code == 1
    assert "missing in the bundle" not in told
    assert path.parent.parent == Path(os.environ["TMPDIR"]) / f"rlinf-logs-{os.getuid()}"
    assert path.stat().st_mode & 0o777 == 0o600
    kept = read_bundle(path).recorded()
    (death,) = kept.deaths
    assert (death["process"], death["text"], death["last_words"]) == ("actor:0", "exited with code 3", ["out of luck"])
    assert kept.verdict is None
    assert kept.missing == {"its verdict": "the script had ended before the run could be asked"}
    assert kept.logs["actor/rank_0.err"] == "out of luck\n"
    assert open_operations(kept)["actor:0"] == {(EventKind.SERVE, "die")}
    again = bundle(tmp_path / "again.zip", "--run-dir", os.environ["TMPDIR"], path.parent.name)
    assert (again.deaths, again.is_alive, again.missing) == (kept.deaths, False, {})
    assert {ring.identity["process"] for ring in again.rings} == {"driver", "actor:0"}


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_kept_with_its_verdict_before_it_is_ended(tmp_path: Path) -> None:
    settings = {"RLINF_RECORDER_EVENTS": "0", "RLINF_INSPECTION_TIMEOUT_S": "0.3"}
    code, _, path = launched(tmp_path, ENDLESS, "--timeout", "8", "--log-dir", str(tmp_path / "logs"), **settings)
    assert code == 124
    assert path.parent == tmp_path / "logs"
    kept = read_bundle(path).recorded()
    assert kept.rings == []
    assert kept.is_alive
    assert kept.verdict is not None
    assert {process["name"] for process in kept.verdict["report"]["processes"]} == {"driver", "actor:0"}
    assert "daemon_0.log" in kept.logs
