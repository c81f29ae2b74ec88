"""Reports survive the way through JSON, and what is none is refused."""

from __future__ import annotations

import json

import pytest

from rlinf_async._inspection.state.run_report import (
    Activity,
    ActivityState,
    Frame,
    OpenCall,
    ProcessReport,
    QueueReport,
    RunReport,
    Target,
    TargetKind,
    Wait,
    from_data,
    to_data,
)

WAIT = Wait("recv", "a message from a:1", 7.5, [Target(TargetKind.MESSAGE, 2)], left=3.0)
ACTIVITY = Activity(
    "thread MainThread",
    ActivityState.WAITING,
    7.5,
    "step",
    1,
    4,
    WAIT,
    ["task 1"],
    "t.py:3 in step()",
    [Frame("t.py", 3, "f")],
)
PROCESS = ProcessReport(2, "worker", "a:0", "a", 0, 0, "n0", 77, "", True, [OpenCall(1, 4, "step", 7.6)], [ACTIVITY])
RUN = RunReport("r", [PROCESS], [QueueReport(1, "c", 0, 2, 3, 4, True, [1], [2], [1, 2])], {"n1": "lost"}, {9: "died"})


def test_a_report_is_the_same_behind_json() -> None:
    assert from_data(RunReport, json.loads(json.dumps(to_data(RUN)))) == RUN


def test_what_lacks_a_field_is_refused() -> None:
    data = to_data(RUN)
    del data["processes"][0]["pid"]
    with pytest.raises(TypeError, match="pid"):
        from_data(RunReport, data)


def test_a_frame_reads_as_a_line_of_a_traceback() -> None:
    assert str(Frame("t.py", 3, "step")) == "t.py:3 in step()"
