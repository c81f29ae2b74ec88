"""``rlinf-ctl`` on real runs, while the driver's loop is blocked and processes are stopped; kills and ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_async import Channel, Cluster, NodePlacementStrategy, WorkerDied
from rlinf_async.errors import NodeLost
from rlinf_launcher.cli.control import main
from rlinf_launcher.control import attachment
from rlinf_launcher.control.run_places import LocalRun, find_runs
from tests._support.mortal_workers import Mortal
from tests._support.standing_runs import await_line, daemon_of, standing_run, stopped

pytestmark = pytest.mark.shared_cluster

CONTROL = "from rlinf_launcher.cli.control import main; raise SystemExit(main())"


def places() -> list[Path]:
    return [Path(os.environ["XDG_RUNTIME_DIR"])]


@pytest.fixture(scope="module")
def launcher() -> Iterator[subprocess.Popen[str]]:
    """A run with two nodes, a rank on each, and a driver with a blocked loop."""
    with standing_run("--local-nodes", "2", "--fake-gpus", "1") as launcher:
        yield launcher


@pytest.fixture(scope="module")
def run(launcher: subprocess.Popen[str]) -> LocalRun:
    return find_runs(places())[-1]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command; return exit code, stdout and stderr."""

    def command(*words: str) -> tuple[int, str, str]:
        code = main(["--run-dir", str(places()[0]), *words])
        return code, *capsys.readouterr()

    return command


def test_ps_shows_who_runs_what_where(run: LocalRun, said: Any) -> None:
    code, out, _ = said("ps")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith(run.run))
    assert re.search(r"2 +rollout:0-1 +\S*rlinf-logs\S+ +\S*standing_runs.py \(pid \d+\)", line)
    (facts,) = [json.loads(line) for line in said("ps", "--json")[1].splitlines() if run.run in line]
    assert facts["alive"]
    assert facts["nodes"] == ["local0", "local1"]


def test_status_is_immediate_despite_a_blocked_driver(run: LocalRun, said: Any) -> None:
    report = json.loads(said("status", run.run, "--json")[1])
    ranks = {process["name"]: process for process in report["processes"]}
    assert sorted(ranks) == ["driver", "rollout:0", "rollout:1"], "the operator is none of them"
    assert ranks["rollout:1"]["devices"] == ["0"]
    assert ranks["rollout:1"]["memory"] > 1 << 20
    began = time.monotonic()
    with stopped(ranks["rollout:0"]["pid"]):
        code, out, _ = said("status", run.run[:6])
    assert time.monotonic() - began < 3
    assert code == 0
    assert re.search(r"rollout:0 +local0 .* (\d+\.\d|\d+) s +stopped \(T\), stand\(\)", out)
    assert re.search(r"rollout:1 +local1 .* s +stand\(\)", out)
    assert re.search(r"obs +local0 +1 +\d+ B +of 4 +driver", out)
    assert re.search(r"1 +local1 +ready +\d+ +1 +0 fake", out)


def test_stacks_have_user_lines_even_of_a_blocked_loop(run: LocalRun, said: Any) -> None:
    code, out, _ = said("stack", "--run", run.run, "--all")
    assert code == 0
    assert re.search(r"> \S+/standing_runs.py:\d+ in stand\(\)", out)
    assert re.search(r"rollout:0-1 +\(2 alike; of the first, pid \d+ on local0\)", out)
    assert re.search(
        r"driver +\(pid \d+ on local0\) +does not run its event loop\n +task Task-1: waits .* data from a pipe", out
    )


def test_a_running_run_has_a_verdict_and_no_exit_code(run: LocalRun, said: Any) -> None:
    code, out, _ = said("stuck", run.run)
    assert (code, out.partition(":")[0]) == (0, "busy")


def test_a_stopped_daemon_is_named_and_the_others_are_asked(run: LocalRun, said: Any) -> None:
    with stopped(daemon_of(run, 0)):
        code, out, _ = said("status", run.run, "--timeout", "1")
    assert code == 0
    assert re.search(r"0 +local0 +the daemon of node 0 of run \w+ did not answer within 0\.\d s", out)
    assert "rollout:1" in out
    with stopped(daemon_of(run, 0)), stopped(daemon_of(run, 1)):
        code, out, err = said("status", run.run, "--timeout", "1")
    assert (code, out) == (3, "")
    assert "node 0" in err
    assert "node 1" in err


def test_logs_are_the_ranks_own_lines_without_their_escape_sequences(run: LocalRun, said: Any) -> None:
    code, out, _ = said("logs", "--run", run.run, "rollout:1")
    assert code == 0
    assert out.splitlines()[1:] == ["rank 1", *out.splitlines()[2:3], "trouble"]
    assert re.fullmatch(r"==> \S+/rollout/rank_1.out <==", out.splitlines()[0])
    lines = [json.loads(line) for line in said("logs", "--run", run.run, "rollout", "--json")[1].splitlines()]
    assert [(line["rank"], line["stream"]) for line in lines] == [
        (rank, stream) for rank in (0, 1) for stream in ("stdout", "stderr")
    ]


@pytest.mark.parametrize("command", ["logs", "kill", "stack"])
@pytest.mark.parametrize(("words", "missing"), [("critic", "'critic'"), ("rollout:7", "rank 7")])
def test_ranks_that_are_not_there_are_an_error(
    run: LocalRun, said: Any, command: str, words: str, missing: str
) -> None:
    code, out, err = said(command, "--run", run.run, words)
    assert (code, out) == (3, "")
    assert missing in err


@pytest.mark.parametrize("words", [[], ["walk"], ["status", "--timeout", "0"], ["kill", "--all"]])
def test_wrong_usage_has_an_exit_code_of_its_own(said: Any, words: list[str]) -> None:
    code, out, err = said(*words)
    assert (code, out) == (2, "")
    assert "usage: rlinf-ctl" in err


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["status", "--timeout", "0"], "'0' is not a number of seconds above 0, as 10 or 0.5"),
        (["ps", "--run-dir", "/nonexistent"], "there is no folder '/nonexistent'"),
        (["stat"], "there is no command 'stat'; did you mean 'status'?\n  fix: write one of ps, status, stuck, down,"),
        (["status", "0a0a", "--run", "0b0b"], "status 0a0a and --run 0b0b name two runs\n  fix: keep one of the two"),
        (["sweep"], "sweep is `rlinf-launch --sweep`, and takes its words\n  fix: write it first: rlinf-ctl sweep ..."),
    ],
)
def test_wrong_usage_names_the_value(said: Any, words: list[str], wrong: str) -> None:
    code, out, err = said(*words)
    assert (code, out) == (2, "")
    assert wrong in err


@pytest.mark.parametrize("command", ["logs", "kill", "stack"])
def test_ranks_in_reverse_are_wrong_usage(run: LocalRun, said: Any, command: str) -> None:
    code, out, err = said(command, "--run", run.run, "rollout:1-0")
    assert (code, out) == (2, "")
    assert "ranks 1-0 are in reverse\n  fix: write rollout:0-1" in err


@pytest.mark.parametrize("module", ["control", "main"])
def test_the_entry_points_are_the_commands_as_modules_too(module: str) -> None:
    command = [sys.executable, "-m", f"rlinf_launcher.cli.{module}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "rlinf-ctl [" in done.stdout if module == "control" else "rlinf-launch [" in done.stdout


def test_files_that_are_not_there_are_named(said: Any, tmp_path: Path, run: LocalRun) -> None:
    code, _, err = said("page", str(tmp_path / "nosuch.zip"))
    assert code == 3
    assert f"there is no bundle {tmp_path}/nosuch.zip\n  fix: `rlinf-ctl bundle RUN` writes one" in err
    (tmp_path / "broken.zip").write_text("no zip")
    code, _, err = said("page", str(tmp_path / "broken.zip"))
    assert code == 3
    assert f"{tmp_path}/broken.zip is no whole bundle" in err
    for command in ("bundle", "page"):
        code, _, err = said(command, run.run, "--output", str(tmp_path / "nosuch/file"))
        assert (code, err.splitlines()[-1]) == (1, f"rlinf-ctl: {tmp_path}/nosuch/file: No such file or directory")


def test_a_live_run_is_not_swept_by_a_prefix(run: LocalRun) -> None:
    command = [sys.executable, "-c", CONTROL, "sweep", run.run[:6]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (255, "")
    assert f"run {run.run} is alive: a daemon of it answers on localhost; nothing was swept" in done.stderr
    assert find_runs(places())[-1].is_alive


def test_sweep_says_what_it_does(said: Any) -> None:
    assert "A run of which a daemon answers is not swept" in said("sweep", "--help")[1]


def test_an_unknown_run_has_its_own_exit_code(run: LocalRun, said: Any) -> None:
    code, out, err = said("down", "ffffffff")
    assert (code, out) == (3, "")
    assert re.search(rf"{run.run}  alive, since \S+, node 0, node 1 here, \S+standing_runs.py in {Path.cwd()}\n", err)
    assert "--log-dir" not in err, "of an ended run it has nothing to say"
    code, out, err = said("logs", "--run", "ffffffff")
    assert (
        "of a run with --log-dir that has ended, name the directory of its logs: `rlinf-ctl logs --run ./logs`" in err
    )


def test_logs_and_stacks_without_a_group_are_those_of_all(run: LocalRun, said: Any) -> None:
    lines = [json.loads(line) for line in said("logs", "--run", run.run, "--json")[1].splitlines()]
    assert {(line["group"], line["rank"]) for line in lines} == {("rollout", 0), ("rollout", 1)}
    assert "rollout:0-1  (2 alike" in said("stack", "--run", run.run)[1]


def test_check_and_sweep_are_the_launchers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "nothex"]) == 2
    assert "rlinf-launch: --sweep: 'nothex' is not a run's id" in capsys.readouterr().err
    assert main(["--json", "check", "--hosts", "localhost:x"]) == 2
    told = json.loads(capsys.readouterr().err)
    assert told["event"] == "error"
    assert "fix: write node04:8" in told["text"]


@pytest.mark.parametrize("namespace", ["this", "another"])
async def test_a_self_started_cluster_is_ended_by_its_daemons(
    namespace: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if namespace == "another":
        monkeypatch.setattr(attachment, "peer_of", lambda _: (0, 0))  # no process has a pid there
    async with Cluster() as cluster:
        channel = Channel.create("obs")
        getting = channel.get()
        before = (await cluster.status())["endpoints"]
        words = ["--run-dir", str(places()[0]), "--run", cluster.run_id]
        assert await asyncio.to_thread(main, [*words, "status"]) == 0
        assert (await cluster.status())["endpoints"] == before, "the operator has left, and nothing has ended"
        assert await asyncio.to_thread(main, [*words, "down"]) == 0
        assert f"run {cluster.run_id} has ended\n" in capsys.readouterr().out
        with pytest.raises(NodeLost):
            await getting


@pytest.mark.slow
async def test_restarted_ranks_are_counted_in_the_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with Cluster(log_to_driver=False) as cluster:
        words = ["--run-dir", str(places()[0]), "--run", cluster.run_id]
        options: dict[str, Any] = {"restart": "rank", "max_restarts": 0}
        async with (
            Mortal.create_group().launch(cluster, NodePlacementStrategy([0, 0]), "mortals", **options) as mortals,
            Mortal.create_group().launch(cluster, NodePlacementStrategy([0]), "plain") as plain,
        ):
            for times, said in ((1, "once"), (2, "2 times")):
                assert await asyncio.to_thread(main, [*words, "restart", "mortals:1"]) == 0
                assert re.search(r"mortals:1 \(pid \d+ on localhost\): restarted\n", capsys.readouterr().out)
                while (await _restarts_of(mortals))[1] < times:
                    pass
                told = ""
                async with asyncio.timeout(10):  # the daemon hears a moment later what was answered past it
                    while not re.search(rf"mortals:1 .* idle \(restarted {said}\)", told):
                        assert await asyncio.to_thread(main, [*words, "status"]) == 0
                        told = capsys.readouterr().out
            assert await asyncio.to_thread(main, [*words, "restart", "plain"]) == 1
            assert "group 'plain' was launched without restart=" in capsys.readouterr().out
            assert await _restarts_of(plain) == [0]


async def _restarts_of(group: Any) -> list[int]:
    try:
        return [restarts for _, restarts, _ in await group.who()]
    except WorkerDied:  # in the midst of it
        return [0] * len(group)


def test_ranks_are_killed_and_the_launcher_ends_the_run(
    launcher: subprocess.Popen[str], run: LocalRun, said: Any
) -> None:
    """Last test of this run: it ends the run."""
    assert launcher.stdin is not None
    words = ["--run-dir", str(places()[0]), "logs", "-f", "--run", run.run, "rollout"]
    with subprocess.Popen([sys.executable, "-c", CONTROL, *words], stdout=subprocess.PIPE, text=True) as follower:
        assert await_line(follower, "==>").endswith("/rollout/rank_0.out <==\n")
        code, told, _ = said("kill", "--run", run.run, "rollout:1")
        assert code == 0
        assert re.fullmatch(r"rollout:1 \(pid \d+ on local1\): killed\n", told)
        launcher.stdin.write("\n")
        launcher.stdin.flush()
        assert "rank 1 of group 'rollout'" in (line := await_line(launcher, "died"))
        assert "was killed by an operator (rlinf-ctl kill)" in line
        code, told, _ = said("kill", "--run", run.run, "rollout:1", "--json")
        assert (code, json.loads(told)["trouble"]) == (1, "it has ended already")
        assert said("down", run.run)[:2] == (0, f"run {run.run} has ended, by its launcher\n")
        assert run.logs is not None
        assert not list(run.logs.glob("*.zip")), "it has not failed"
        assert launcher.wait(10) == 130
        assert await_line(follower, "rank 1")
        assert follower.wait(10) == 0
    assert run.run not in {left.run for left in find_runs(places())}
    for words in (["logs", "rollout"], ["logs", "-f"]):
        code, out, err = said(*words, "--run", str(run.logs))
        assert (code, err) == (0, "")
        assert [line for line in out.splitlines() if line.startswith("rank")] == ["rank 0", "rank 1"]
    assert said("logs", "rollout:1", "--run", str(run.logs), "--tail", "0")[0] == 0
    assert said("logs", "critic", "--run", str(run.logs))[0] == 3
