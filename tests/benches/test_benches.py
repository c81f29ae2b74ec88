"""The benches: named cases, and a quick run of each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benches import (
    bench_broadcast,
    bench_call,
    bench_channel,
    bench_cockpit,
    bench_launch,
    bench_placement,
    bench_recorder,
    bench_send,
    bench_trace,
    bench_weights,
)
from rlinf_async._recorder import recording

ROOT = Path(__file__).parents[2]
FIELDS = {"bench", "case", "unit", "median", "n", "rounds", "limit", "ratio_to_limit", "peers", "met", "ahead", "loop"}


def test_every_case_has_a_name_of_its_own() -> None:
    names = [each.case.name for each in (*bench_call.local_measurements(True), *bench_call.remote_measurements(True))]
    names += [*bench_launch.COLD, *bench_launch.more_cases()]
    names += [case.name for case in bench_launch.preload_cases().values()]
    names += [case.name for case in bench_launch.growth_cases((4, 16)).values()]
    names += [
        each.case.name
        for each in (
            *bench_send.small(False),
            *bench_send.large(False),
            *bench_send.waiting(False),
            *bench_send.two_nodes("two_nodes", False),
            *bench_send.two_nodes("two_hosts", False),
            *bench_send.one_gpu(False),
            *bench_weights.one_gpu(False),
            *bench_channel.same_node(False),
            *bench_channel.many_keys(False),
            *bench_channel.many_workers(False),
            *bench_channel.two_nodes(False),
            *bench_broadcast.same_node(False),
            *bench_broadcast.two_nodes(False),
        )
    ]
    names += [
        case.name for family in bench_weights.families(False) for sync in family for case in sync.cases().values()
    ]
    names += [plan.case.name for plan in bench_placement.plans(400)]
    names += [case.name for case in (*bench_trace.cases().values(), *bench_cockpit.cases(4).values())]
    assert len(set(names)) == len(names)


# Some cases of every kind, because each starts a cluster and processes that import torch: a kind that two benches start
# in the same way stands in one of them.  `make bench ARGS=--quick` measures all of them.
CALLS = ("one_call_def", "group_call_def", "argument_256MiB_read", "remote_group_pipelined")
LAUNCHES = (
    "cold_start_torch_driver",
    "memory_per_worker",
    "launch_4_torch",
    "growth_launch",
    "relaunch_4_transformers",
)
SENDS = ("send_object", "send_tensor", "loop_delay_pending")
CHANNELS = ("small_16_def", "keys_1000", "two_nodes_tensors_1MiB")
BROADCASTS = ("two_nodes_broadcast_1MiB",)
WEIGHTS = ("many_64MiB_1_copy", "mlp_100KiB_1_copy", "two_nodes_llm_64MiB_1_map")


@pytest.mark.parametrize(
    ("bench", "only", "cases"),
    [
        ("bench_send", SENDS, 3),
        pytest.param("bench_call", CALLS, 4, marks=pytest.mark.slow),
        pytest.param("bench_launch", LAUNCHES, 6, marks=pytest.mark.slow),
        pytest.param("bench_channel", CHANNELS, 3, marks=pytest.mark.slow),
        pytest.param("bench_broadcast", BROADCASTS, 1, marks=pytest.mark.slow),
        pytest.param("bench_weights", WEIGHTS, 8, marks=pytest.mark.slow),
        pytest.param("bench_cockpit", ("status",), 2, marks=pytest.mark.slow),
    ],
)
def test_a_quick_run_prints_a_valid_row_for_each_of_its_cases(bench: str, only: tuple[str, ...], cases: int) -> None:
    command = [sys.executable, "-m", f"benches.{bench}", "--quick", *(f"--only={part}" for part in only)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    names = {row["case"] for row in rows}
    assert len(names) == len(rows)
    assert sum(not name.startswith("two_hosts_") for name in names) == cases  # those need root
    for row in rows:
        assert row.keys() >= FIELDS
        assert f"bench_{row['bench']}" == bench
        assert row["median"] > 0
        assert row["peers"] == {}


def test_every_placement_is_planned_within_its_second(capsys: pytest.CaptureFixture[str]) -> None:
    bench_placement.main(["--quick"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["case"] for row in rows] == [plan.case.name for plan in bench_placement.plans(400)]
    for row in rows:
        assert row.keys() >= FIELDS
        assert row["met"] is True


def test_a_quick_bench_of_the_recorder_prints_what_an_event_costs(capsys: pytest.CaptureFixture[str]) -> None:
    bench_recorder.main(["--quick", "--only", "event", "--only", "left_out"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["case"] for row in rows] == ["event", "left_out"]
    assert all(row["median"] > 0 and row["unit"] == "us" and row["met"] is not None for row in rows)


def test_a_quick_bench_of_the_trace_prints_a_row_for_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    bench_trace.main(["--quick"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["case"] for row in rows] == list(bench_trace.cases())
    assert all(row["median"] > 0 and row["unit"] == "us" and row["met"] is not None for row in rows)
    assert recording.log is None
