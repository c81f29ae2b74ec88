"""``rlinf-ctl page`` on a real run: live until its end, as a file, of a bundle; Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_launcher.cli.control import main
from rlinf_launcher.control.bundle_file import BadBundle
from rlinf_launcher.control.run_page import _page_of_bundle
from rlinf_launcher.control.run_places import LocalRun, find_runs
from tests._support.made_run import made_run
from tests._support.standing_runs import standing_run

pytestmark = pytest.mark.shared_cluster

CONTROL = "from rlinf_launcher.cli.control import main; raise SystemExit(main())"


def places() -> list[Path]:
    return [Path(os.environ["XDG_RUNTIME_DIR"])]


@pytest.fixture(scope="module")
def launcher() -> Iterator[subprocess.Popen[str]]:
    with standing_run("--local-nodes", "1") as launcher:
        yield launcher


@pytest.fixture(scope="module")
def run(launcher: subprocess.Popen[str]) -> LocalRun:
    return find_runs(places())[-1]


@contextlib.contextmanager
def page(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the command; return it with the address that it prints."""
    command = [sys.executable, "-c", CONTROL, "--run-dir", str(places()[0]), "page", "--json", *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **streams) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["address"]
        finally:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
        assert "Traceback" not in said


def embedded(html: str) -> Any:
    return json.loads(html.partition('id="data">')[2].partition("</script>")[0])


def get(address: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=20) as answer:
        return str(answer.read().decode())


def test_a_live_runs_page_is_written_for_its_owner_alone(
    run: LocalRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.html"
    assert main(["--run-dir", str(places()[0]), "page", run.run, "--output", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    data = embedded(path.read_text())
    assert sorted(process["name"] for process in data["processes"].values()) == ["driver", "rollout:0", "rollout:1"]
    assert "stand" in data["names"]
    assert data["sections"]["verdict"]["kind"] == "busy"
    assert any("rank 1" in text for text in data["logs"].values())
    assert os.listdir(tmp_path) == ["run.html"]


@pytest.mark.parametrize("odd", [float("nan"), json.loads("[" * 900 + "]" * 900)])
def test_a_bundle_that_no_browser_could_read_is_refused(odd: Any) -> None:
    malformed = dataclasses.replace(made_run(500), nodes=[{"node": 0, "versions": odd}])
    with pytest.raises(BadBundle, match=r"a\.zip is no bundle of a run"):
        _page_of_bundle("a.zip", malformed)


@pytest.mark.parametrize("words", [["--port", "70000"], ["--port", "x"], ["a", "b"]])
def test_wrong_usage_is_code_2(words: list[str]) -> None:
    assert main(["page", *words]) == 2


def test_a_port_that_is_taken_is_an_error(run: LocalRun) -> None:
    with page(run.run) as (_, address):
        port = address.split(":")[2].split("/")[0]
        assert main(["--run-dir", str(places()[0]), "page", run.run, "--port", port]) == 1


@pytest.mark.slow
def test_a_live_page_has_news_until_its_run_has_ended(launcher: subprocess.Popen[str], run: LocalRun) -> None:
    """Last test of this run: it ends the run."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with page(run.run) as (process, address):
        assert embedded(get(address)) is None
        with opener.open(f"{address}events", timeout=30) as events:
            first = json.loads(events.readline().decode().removeprefix("data: "))
            assert len(first["processes"]) == 3
            assert first["sections"]["summary"]["is_alive"]
            assert first["sections"]["verdict"]["kind"] == "busy"
            launcher.terminate()
            lines = [line.decode() for line in events]
        assert lines[-3] == "event: end\n"
        last = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")][-2]
        assert not last["sections"]["summary"]["is_alive"]
        assert len(last["processes"]) == 3, "the last state is kept"
    assert process.returncode == 130
