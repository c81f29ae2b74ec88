"""Profiling windows of real workers: torch's own profiler, and tools that are wrapped around the interpreter."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf_async import Cluster, LaunchError, NodePlacementStrategy, Worker, WorkerDied
from rlinf_async.profiling import NsightConfig, RocprofSysConfig, TorchProfileConfig
from tests._support.exchanges import Talker

pytestmark = pytest.mark.shared_cluster

ONE = NodePlacementStrategy([0])

NSYS = """#!/bin/sh
# Runs the program as a child of its own, as nsys does, and writes a report when that has ended.
for word in "$@"; do
    case $word in
        --output=*) report=${word#--output=} ;;
    esac
done
printf '%s\\n' "$@" > "${report%_%p}.command"
shift
while [ "${1#-}" != "$1" ]; do shift; done
TOOL_WAS_HERE=1 "$@"
code=$?
echo "exit $code" > "${report%_%p}.report"
exit $code
"""

ROCPROF = """#!/bin/sh
while [ "$1" != "--" ]; do shift; done
shift
TOOL_WAS_HERE=1 exec "$PYTHON_EXECUTABLE" "$@"
"""


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """A PATH with both tools."""
    for name, script in (("nsys", NSYS), ("rocprof-sys-python", ROCPROF)):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    return {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}


def multiply(worker: Worker) -> None:
    torch.ones(64, 64) @ torch.ones(64, 64)


def test_profiling_that_is_given_to_one_group_and_names_none_is_for_that_group(
    cluster: Cluster, tmp_path: Path
) -> None:
    for enabled in (True, False):
        config = TorchProfileConfig(enabled=enabled, output_dir=str(tmp_path))
        with closing(Talker.create_group().launch(cluster, placement=ONE, name="given", profiling=config)) as group:
            group.start_profile(0).wait()
            group.do(multiply).wait()
            assert [path is not None for path in group.stop_profile().wait()] == [enabled]


def test_a_window_of_torchs_profiler_is_a_trace_of_what_ran_in_it(cluster: Cluster, tmp_path: Path) -> None:
    config = TorchProfileConfig(worker_groups=["Traced"], steps=[1], output_dir=str(tmp_path), record_shapes=True)
    group = Talker.create_group().launch(
        cluster, placement=NodePlacementStrategy([0, 0]), name="traced", profiling=config
    )
    for step in (0, 1, 2):
        group.start_profile(step).wait()
        group.do(multiply).wait()
        paths = group.stop_profile().wait()
        if step != 1:
            assert paths == [None, None]
            continue
        for rank, path in enumerate(paths):
            assert Path(path).parent == tmp_path
            assert Path(path).name.startswith(f"rlinf_profile_traced_{rank}_")
            events = json.loads(Path(path).read_text())["traceEvents"]
            assert "aten::matmul" in {event["name"] for event in events}
    group.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_reports_are_with_the_logs_where_nothing_else_is_said_and_windows_do_not_overlap(cluster: Cluster) -> None:
    config = TorchProfileConfig(worker_groups="all")
    group = Talker.create_group().launch(cluster, placement=ONE, name="actor", profiling=config)
    group.start_profile(7).wait()
    with pytest.raises(RuntimeError, match="actor:0 has a profiling window open"):
        group.start_profile(8).wait()
    (path,) = group.stop_profile().wait()
    assert Path(path).parent == Path(cluster.log_dir, "profiles")
    group.close()


def about(worker: Worker) -> tuple[Any, ...]:
    tensor = torch.arange(3.0)
    return os.environ.get("TOOL_WAS_HERE"), os.environ["RANK"], worker.get_name(), float(tensor.sum()), os.getppid()


@pytest.mark.slow
def test_nsys_runs_each_worker_of_the_group(cluster: Cluster, tools: dict[str, str], tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    config = NsightConfig(worker_groups="all", steps=[1], output_dir=str(reports), options={"trace": "cuda,nvtx"})
    group = Talker.create_group().launch(
        cluster, placement=NodePlacementStrategy([0, 0]), name="wrapped", profiling=config, env=tools
    )
    group.wait_ready(60)
    facts = group.do(about).wait(60)
    assert [each[:4] for each in facts] == [("1", str(rank), f"wrapped:{rank}", 3.0) for rank in (0, 1)]
    assert [each[4] for each in facts] == [info.worker.pid for info in group.worker_info_list]  # the tool
    group.start_profile(1).wait()
    assert group.stop_profile().wait() == [None, None]
    group.close(grace=20)
    for rank in (0, 1):
        command = (reports / f"rlinf_profile_wrapped_{rank}.command").read_text().splitlines()
        assert command[:4] == [
            "profile",
            "--trace=cuda,nvtx",
            "--capture-range=cudaProfilerApi",
            "--capture-range-end=stop",
        ]
        flags = command[6 : command.index("-m")]  # the workers' interpreter has those of this one besides
        assert command[5] == (cluster.nodes[0].python_interpreter_path or command[5])
        assert flags[-1] == "-P"
        assert command[command.index("-m") + 1] == "rlinf_async._worker.template"
        assert (reports / f"rlinf_profile_wrapped_{rank}.report").read_text() == "exit 0\n"


def exit_with_seven(worker: Worker) -> None:
    os._exit(7)


@pytest.mark.slow
def test_the_death_of_a_profiled_worker_is_told_as_it_was(
    cluster: Cluster, tools: dict[str, str], tmp_path: Path
) -> None:
    config = NsightConfig(worker_groups="all", output_dir=str(tmp_path))
    group = Talker.create_group().launch(cluster, placement=ONE, name="mortal", profiling=config, env=tools)
    with pytest.raises(WorkerDied, match="exited with code 7"):
        group.do(exit_with_seven).wait(60)
    group.close()


def test_rocprof_runs_the_worker(cluster: Cluster, tools: dict[str, str], tmp_path: Path) -> None:
    config = RocprofSysConfig(worker_groups="all", output_dir=str(tmp_path / "r"), env={"ROCPROFSYS_MODE": "sampling"})
    group = Talker.create_group().launch(cluster, placement=ONE, name="rocm", profiling=config, env=tools)
    assert group.do(about).wait(60)[0][:3] == ("1", "0", "rocm:0")
    assert group.do(mode).wait() == ["sampling"]
    group.close()


def mode(worker: Worker) -> str | None:
    return os.environ.get("ROCPROFSYS_MODE")


def test_a_node_without_the_tool_is_an_error_at_launch_and_leaves_nothing(cluster: Cluster) -> None:
    config = NsightConfig(worker_groups="all")
    with pytest.raises(LaunchError, match="node localhost has no 'nsys', which the profiling of this group needs"):
        Talker.create_group().launch(
            cluster, placement=ONE, name="toolless", profiling=config, env={"PATH": "/nowhere"}
        ).wait_ready()
    assert "toolless" not in cluster.status()["names"]
    Talker.create_group().launch(cluster, placement=ONE, name="toolless").wait_ready().close()
