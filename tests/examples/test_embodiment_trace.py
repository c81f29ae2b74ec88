"""A trace of the whole script: everything in the format, everything in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests._support.trace_files import Trace
from tests.examples.test_embodiment_training import SCRIPT, SMALL

pytest.importorskip("mujoco")


@pytest.mark.slow
def test_a_trace_of_the_script_holds_its_calls_channels_and_timers(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    command = [sys.executable, str(SCRIPT), *SMALL, "runner.max_steps=2", f"runner.logger.log_path={tmp_path / 'logs'}"]
    environment = {**os.environ, "RLINF_TRACE": str(path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    trace = Trace(path)  # which checks keys, nesting and arrows
    groups = {process.partition(":")[0] for process in trace.processes}
    assert len(groups) == 4, groups
    assert "driver" in groups
    calls = [span for span in trace.spans if span.process == "driver" and span.category == "call"]
    targets = [callee for _, callee in trace.arrows]
    assert {caller.name for caller, _ in trace.arrows} == {span.name for span in calls}
    assert {callee.process.partition(":")[0] for callee in targets} == groups - {"driver"}
    for caller, callee in trace.arrows:
        assert caller.begin <= callee.begin <= callee.end <= caller.end
    workers = [span for span in trace.spans if span.process != "driver"]
    assert {"call", "channel"} < {span.category for span in workers}
    for timer in ("interact", "run_training", "compute_advantages_and_returns", "sync_model"):
        assert [span for span in workers if span.name == timer and span.category in groups], timer
    assert not [event for event in trace.events if event["ph"] == "i"]
