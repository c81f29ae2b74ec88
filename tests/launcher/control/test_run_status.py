"""Tables of ``rlinf-ctl status`` that combine several processes."""

from __future__ import annotations

from rlinf_async._core import frames
from rlinf_async._inspection.state.run_report import RunReport
from rlinf_launcher.control.run_status import named, weight_rows
from rlinf_launcher.control.run_view import RunView
from tests.launcher.control.test_run_view import process


def test_a_silent_nodes_process_is_not_said_to_have_ended() -> None:
    here, silent, gone = frames.endpoint(0, 1), frames.endpoint(1, 1), frames.endpoint(0, 2)
    report = RunReport("run", [process(here, "actor", 0)], [], {}, {gone: "ended: exit code 1"})
    view = RunView(report, {}, {1: "did not answer within 1.0 s"})
    told = [named(view, [each]) for each in (here, silent, gone, frames.endpoint(0, 3))]
    assert told == ["actor:0", "(of a node that does not answer)", "ended: exit code 1", "(ended)"]
    assert named(view, []) == "-"


def test_weights_have_a_row_per_applied_version_and_unapplied_model() -> None:
    ranks = [process(endpoint, "rollout", endpoint) for endpoint in range(3)] + [process(9, "trainer", 0)]
    weights = {
        0: {"policy": {"applied": 4}},
        1: {"policy": {"applied": 4}},
        2: {"policy": {"applied": 2}, "lost": {"applied": 1}},
        9: {"policy": {"published": 4}, "critic": {"published": 7}},
    }
    details = {0: {"processes": {str(endpoint): {"weights": models} for endpoint, models in weights.items()}}}
    assert weight_rows(RunView(RunReport("run", ranks, [], {}, {}), details, {})) == [
        ["lost", "-", "-", "1", "-", "rollout:2"],
        ["policy", "4", "trainer:0", "2", "2", "rollout:2"],
        ["policy", "4", "trainer:0", "4", "0", "rollout:0-1"],
        ["critic", "7", "trainer:0", "-", "-", "-"],
    ]
