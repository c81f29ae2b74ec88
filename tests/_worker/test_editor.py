"""A script under debugpy: its nodes start past it, its workers connect to it.  debugpy itself is a stand-in here."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rlinf_async._wire.lifeline import Lifeline
from rlinf_async._worker import editor
from rlinf_async.any_rank import AnyRank
from rlinf_async.outcome import CallDeadline


@pytest.fixture
def debugpy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What debugpy leaves in ``sys.modules``."""
    pydevd: Any = ModuleType("pydevd")
    pydevd.SetupHolder = SimpleNamespace(setup={"multiprocess": True})
    monkey: Any = ModuleType("pydev_monkey")
    monkey.patch_args = lambda command: [command[0], "-c", f"import sys; sys.connected = True; {command[2]}"]
    monkeypatch.setitem(sys.modules, "pydevd", pydevd)
    monkeypatch.setitem(sys.modules, "_pydev_bundle.pydev_monkey", monkey)
    return pydevd.SetupHolder


def test_a_worker_runs_what_a_childs_command_line_would(
    debugpy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = editor.environment()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "connected", False, raising=False)
    editor.connect()
    assert sys.connected  # type: ignore[attr-defined]  # set by what has run
    monkeypatch.setattr(sys, "connected", False)
    editor.connect()
    assert not sys.connected, "a process that the worker starts inherits nothing"  # type: ignore[attr-defined]


def test_an_editor_that_wants_no_children_and_none_get_no_sessions(debugpy: SimpleNamespace) -> None:
    debugpy.setup["multiprocess"] = False
    assert editor.environment() == {}
    del sys.modules["pydevd"]
    assert editor.environment() == {}


def test_a_worker_that_cannot_connect_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RLINF_EDITOR_SESSION", "raise SystemExit(1)")
    with caplog.at_level(logging.WARNING):
        editor.connect()
    assert "not debugged by the editor: SystemExit: 1" in caplog.text


def test_calls_have_no_deadline_in_an_editor(debugpy: SimpleNamespace) -> None:
    nothing: Any = None
    assert CallDeadline.of(3.0) is None
    assert AnyRank(nothing, nothing, [0], None, None, 3.0)._stall_timeout is None


async def test_nodes_are_started_past_the_editor(debugpy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def popen(command: list[str], **kwargs: Any) -> Any:
        started.extend(command)
        raise OSError(2, "this is a test")

    monkeypatch.setattr("rlinf_async._wire.lifeline.subprocess.Popen", popen)
    with pytest.raises(Exception, match="cannot be started"):
        await Lifeline.start([sys.executable, "-V"], name="node")
    assert started == ["/usr/bin/env", sys.executable, "-V"]
