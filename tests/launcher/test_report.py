"""Progress, tables and errors of the launcher."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlinf_launcher.report import JsonReport, LiveReport, Report, grid, make_report


@dataclass
class Node:
    name: str
    hidden: bool = False


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def tell(report: Report) -> None:
    """Report the events of a run."""
    report.begin("0a1b2c3d", [Node("a"), Node("b"), Node("localhost", hidden=True)], "/tmp/logs")
    report.node(1, "reached", after=0.2, py="3.11.7")
    report.node(0, "failed", "ssh: no [way]\ntry: x")
    report.warn("a clock")
    report.ready({"node": 2, "GPU": 1})
    report.node(1, "lost", "cable")
    report.output("[g:0@b] hello")
    report.bundle(Path("/tmp/logs/rlinf-0a1b2c3d.zip"))
    report.exit("train.py", 3, 3)
    report.close()


def test_without_a_terminal_every_change_is_one_plain_line() -> None:
    screen = io.StringIO()
    tell(Report(screen))
    lines = screen.getvalue().splitlines()
    assert lines[:3] == [
        "rlinf run 0a1b2c3d: 2 nodes, and a daemon here for the script, logs in /tmp/logs",
        "b: reached after 0.2s py 3.11.7",
        "warning: a clock",
    ]
    assert lines[3].startswith("ready in ")
    assert lines[3].endswith(": 2 nodes, 1 GPU")
    assert lines[4:] == [
        "error: b: lost: cable",
        "[g:0@b] hello",
        "a bundle of the run: /tmp/logs/rlinf-0a1b2c3d.zip (rlinf-ctl page /tmp/logs/rlinf-0a1b2c3d.zip shows it)",
        "train.py ended with exit code 3",
    ]
    assert "\x1b" not in screen.getvalue()


def test_quiet_leaves_errors_and_the_nodes_own_output() -> None:
    screen = io.StringIO()
    tell(Report(screen, verbosity=-1))
    assert screen.getvalue().splitlines() == ["error: b: lost: cable", "[g:0@b] hello"]


def test_json_is_one_object_per_line() -> None:
    screen = io.StringIO()
    tell(JsonReport(screen))
    events = [json.loads(line) for line in screen.getvalue().splitlines()]
    assert [event["event"] for event in events] == [
        "run", "node", "node", "warning", "ready", "node", "output", "bundle", "exit",
    ]  # fmt: skip
    assert events[2] == {"event": "node", "rank": 0, "name": "a", "state": "failed", "text": "ssh: no [way]\ntry: x"}
    assert events[0]["log_dir"] == "/tmp/logs"
    assert events[1]["after"] == 0.2
    assert {name: events[4][name] for name in ("nodes", "gpus")} == {"nodes": 2, "gpus": 1}
    assert events[-2] == {"event": "bundle", "path": "/tmp/logs/rlinf-0a1b2c3d.zip"}
    assert events[-1] == {"event": "exit", "script": "train.py", "code": 3, "script_code": 3}


def test_quiet_json_leaves_errors_losses_output_and_the_exit() -> None:
    screen = io.StringIO()
    tell(JsonReport(screen, verbosity=-1))
    events = [json.loads(line) for line in screen.getvalue().splitlines()]
    assert [(event["event"], event.get("state")) for event in events] == [
        ("node", "failed"), ("node", "lost"), ("output", None), ("bundle", None), ("exit", None),
    ]  # fmt: skip


def test_the_scripts_code_is_told_beside_the_launchers() -> None:
    screen = io.StringIO()
    for report in (Report(screen), JsonReport(screen, verbosity=-1)):
        report.exit("train.py", 1, 0)
        report.exit("train.py", 130, None)
        report.exit("train.py", 0, 0)
    assert [json.loads(line) for line in screen.getvalue().splitlines()] == [
        {"event": "exit", "script": "train.py", "code": 1, "script_code": 0},
        {"event": "exit", "script": "train.py", "code": 130, "script_code": None},
    ]


def test_on_a_terminal_a_table_gives_way_to_lines() -> None:
    screen = Terminal()
    report = LiveReport(screen)
    report.begin("0a1b2c3d", [Node("a"), Node("b")])
    report.node(0, "up", "10.0.0.1:1", gpus="8")
    assert "NODE" in screen.getvalue()
    assert "10.0.0.1:1" in screen.getvalue()
    report.warn("meanwhile")
    report.ready({"node": 2})
    before = len(screen.getvalue())
    report.node(1, "lost", "cable")
    report.close()
    assert screen.getvalue()[before:] == "error: b: lost: cable\n"


@pytest.mark.parametrize("text", ["[/opt/bin/python]: not found", "[sudo] password", "2001:db8:a:b::1"])
def test_a_table_has_texts_as_they_are(text: str) -> None:
    screen = Terminal()
    report = LiveReport(screen)
    report.begin("0a1b2c3d", [Node("a"), Node("b")])
    report.node(0, "failed", text)
    report.close()
    assert f"failed: {text}" in screen.getvalue()


def test_a_terminal_that_is_gone_stops_nobody() -> None:
    for kind in (Report, JsonReport, LiveReport):
        screen = Terminal()
        report = kind(screen)
        report.begin("0a1b2c3d", [Node("a"), Node("b")])
        screen.close()
        report.node(0, "ready")
        report.ready({"node": 2})
        report.node(1, "lost", "cable")
        report.close()


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_the_table_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert isinstance(make_report(as_json=False, verbosity=0, stream=Terminal()), LiveReport)
    assert type(make_report(as_json=False, verbosity=0, stream=io.StringIO())) is Report
    assert type(make_report(as_json=True, verbosity=0, stream=Terminal())) is JsonReport
    monkeypatch.setenv(variable, value)
    assert type(make_report(as_json=False, verbosity=0, stream=Terminal())) is Report


def test_a_grid_is_aligned_and_has_no_trailing_blanks() -> None:
    assert grid(["A", "LONG"], [["xyz", "1"], ["y", ""]]) == "A    LONG\nxyz  1\ny"
