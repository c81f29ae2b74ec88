"""The launcher in jobs of a real Slurm: slurmctld, three slurmds and munged on this machine (``make slurm``)."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests._support.fake_hosts import CHECKOUT
from tests._support.slurm_cluster import SlurmCluster, launch, missing

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(missing()), reason=str(missing()))]

PROGRAM = """
import os, sys, time
from rlinf_async import Cluster, NodePlacementStrategy, Worker

class Place(Worker):
    def where(self):
        return os.environ["SLURMD_NODENAME"], os.environ.get("CUDA_VISIBLE_DEVICES", ""), os.environ.get("PROLOGUE", "")

    def stay(self, seconds):
        time.sleep(seconds)

with Cluster() as cluster:
    count = cluster.num_nodes
    group = Place.create_group().launch(cluster, placement=NodePlacementStrategy(list(range(count))), name="g")
    for place in group.wait_ready().where().wait():
        print("at", *place, flush=True)
    print("groups", *(f"{g.label}:{','.join(str(n.node_rank) for n in g.nodes)}" for g in cluster.node_groups))
    print("READY", os.getpid(), flush=True)
    group.stay(float(sys.argv[1])).wait()
    print("DONE", flush=True)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    with SlurmCluster(3) as cluster:
        yield cluster


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., str]:
    """Return a function for the program's command line: ``train(seconds, exit code, *flags)``."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)

    def line(seconds: float, code: int, *flags: str) -> str:
        return launch(*flags, str(script), str(seconds), str(code))

    return line


def exit_code(slurm: SlurmCluster, job: str) -> str:
    return slurm.facts(job)["ExitCode"]


def at(text: str) -> list[str]:
    return [line.removeprefix("at ").strip() for line in text.splitlines() if line.startswith("at ")]


def run_id(text: str) -> str:
    match = re.search(r"rlinf run ([0-9a-f]{8})", text)
    assert match is not None, text
    return match[1]


def processes_of(run: str) -> list[str]:
    """Return the remaining processes of a run, except those that have just ended."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RLINF_RUN_ID") == run and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.cmdline()}")
    return found


def run_dirs(run: str) -> list[Path]:
    places = (Path(os.environ["XDG_RUNTIME_DIR"]), Path(os.environ["TMPDIR"]), Path("/tmp"))
    return [path for place in places for path in place.glob(f"rlinf-*{run}*")]


def nothing_is_left(slurm: SlurmCluster, job: str, seconds: float = 12.0) -> None:
    run = run_id(slurm.output(job))
    deadline = time.monotonic() + seconds
    while processes_of(run) or run_dirs(run):
        assert time.monotonic() < deadline, (processes_of(run), run_dirs(run), slurm.output(job))
        time.sleep(0.1)


def test_a_job_runs_on_all_nodes_without_sshd(slurm: SlurmCluster, train: Callable[..., str]) -> None:
    job = slurm.submit(train(0, 7), "--nodes=3", "--ntasks=3")
    assert slurm.wait(job) == "FAILED"
    assert exit_code(slurm, job) == "7:0"
    assert at(slurm.output(job)) == ["n0", "n1", "n2"]
    nothing_is_left(slurm, job)
    job = slurm.submit(train(0, 0), "--nodes=2", "--ntasks=2")
    assert slurm.wait(job) == "COMPLETED"


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        (["--gpus=5"], ["0,1", "0,1", "0"]),
        (["--gpus-per-task=1", "--ntasks=6", "--ntasks-per-node=2"], ["0,1"] * 3),
        (["--gpus-per-node=1", "--cpus-per-task=2", "--ntasks-per-node=1", "--mem-per-cpu=1"], ["0"] * 3),
    ],
)
def test_a_node_has_all_gpus_of_the_job_there(
    slurm: SlurmCluster, train: Callable[..., str], options: list[str], devices: list[str]
) -> None:
    probe = "scontrol show job -d $SLURM_JOB_ID | grep GRES; "
    job = slurm.submit(probe + train(0, 0), "--nodes=3", *options)
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    assert sorted(place.split()[1] for place in at(slurm.output(job))) == sorted(devices), slurm.output(job)


def test_scancel_leaves_nothing(slurm: SlurmCluster, train: Callable[..., str]) -> None:
    job = slurm.submit(train(600, 0), "--nodes=3", "--ntasks=3")
    slurm.wait_for_output(job, "READY")
    assert len(processes_of(run_id(slurm.output(job)))) > 6
    slurm.run(["scancel", job])
    assert slurm.wait(job) == "CANCELLED"
    nothing_is_left(slurm, job)


def test_scancel_in_the_middle_of_the_start_leaves_nothing(slurm: SlurmCluster, train: Callable[..., str]) -> None:
    for words in ("3 nodes", "n0: reached", ": up "):
        job = slurm.submit(train(600, 0), "--nodes=3", "--ntasks=3")
        slurm.wait_for_output(job, words)
        slurm.run(["scancel", job])
        assert slurm.wait(job) == "CANCELLED"
        nothing_is_left(slurm, job)


def test_the_time_limit_leaves_nothing(slurm: SlurmCluster, train: Callable[..., str]) -> None:
    job = slurm.submit(train(600, 0), "--nodes=3", "--ntasks=3", "--time=1")
    slurm.wait_for_output(job, "READY")
    slurm.run(["scontrol", "update", f"jobid={job}", "EndTime=now"])
    assert slurm.wait(job, seconds=90) == "TIMEOUT"
    nothing_is_left(slurm, job)
    assert "DUE TO TIME LIMIT" in slurm.output(job)


def test_a_requeued_job_is_a_new_run_without_leftovers(slurm: SlurmCluster, train: Callable[..., str]) -> None:
    job = slurm.submit(
        f'[ -n "$SLURM_RESTART_COUNT" ] && {{ {train(0, 0, "-v")}; }}; {train(600, 0)}',
        *("--nodes=3", "--ntasks=3", "--requeue", "--open-mode=append"),
    )
    slurm.wait_for_output(job, "READY")
    first = run_id(slurm.output(job))
    slurm.run(["scontrol", "requeue", job])
    slurm.wait(job, "PENDING")
    nothing_is_left(slurm, job)
    slurm.run(["scontrol", "update", f"jobid={job}", "StartTime=now"])
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    assert len(set(re.findall(r"rlinf run ([0-9a-f]{8})", slurm.output(job))) - {first}) == 1


def test_a_lost_node_ends_the_run_with_its_name(train: Callable[..., str]) -> None:
    with SlurmCluster(3) as own:
        job = own.submit(train(600, 0), "--nodes=3", "--ntasks=3", "--no-kill")
        own.wait_for_output(job, "READY")
        own.kill_node("n2", job)
        own.wait_for_output(job, "ended with exit code 1")
        assert own.wait(job, "COMPLETING", "FAILED") in ("COMPLETING", "FAILED")
        assert exit_code(own, job) == "1:0"
        text = own.output(job)
        assert "error: n2: lost: " in text
        assert "NodeLost: " in text
        nothing_is_left_but_a_folder(own, job)


def nothing_is_left_but_a_folder(slurm: SlurmCluster, job: str) -> None:
    """A node that loses its power cannot remove its folder, which stays on its disk."""
    with contextlib.suppress(AssertionError):
        nothing_is_left(slurm, job, 4.0)
    run = run_id(slurm.output(job))
    assert processes_of(run) == []
    for path in run_dirs(run):
        subprocess.run(["rm", "-r", str(path)], check=True)


def test_a_killed_srun_is_a_lost_node_and_leaves_nothing(slurm: SlurmCluster, train: Callable[..., str]) -> None:
    job = slurm.submit(train(600, 0), "--nodes=2", "--ntasks=2")
    slurm.wait_for_output(job, "READY")
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "srun" and process.environ().get("SLURM_JOB_ID") == job:
                process.kill()
    assert slurm.wait(job, seconds=40) == "FAILED"
    assert "error: n1: lost: its srun was killed by signal 9, on this machine" in slurm.output(job)
    nothing_is_left(slurm, job)


def test_two_jobs_on_the_same_nodes_do_not_meet(slurm: SlurmCluster, train: Callable[..., str]) -> None:
    jobs = [slurm.submit(train(3, code), "--nodes=3", "--ntasks=3") for code in (0, 5)]
    for job in jobs:
        slurm.wait_for_output(job, "READY")
    assert [slurm.facts(job)["JobState"] for job in jobs] == ["RUNNING"] * 2
    assert [slurm.wait(job) for job in jobs] == ["COMPLETED", "FAILED"], slurm.output(jobs[0])
    for job in jobs:
        assert at(slurm.output(job)) == ["n0", "n1", "n2"]
        assert "DONE" in slurm.output(job)
        nothing_is_left(slurm, job)
    assert run_id(slurm.output(jobs[0])) != run_id(slurm.output(jobs[1]))


def test_components_of_a_heterogeneous_job_are_node_groups(slurm: SlurmCluster, train: Callable[..., str]) -> None:
    options = ["--nodes=1", "--ntasks=1", "--gpus=2", "--job-name=trainer", ":"]
    job = slurm.submit(train(0, 0), *options, "--nodes=2", "--ntasks=2", "--job-name=rollout")
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    text = slurm.output(job)
    assert at(text) == ["n0 0,1", "n1", "n2"]
    groups = set(next(line for line in text.splitlines() if line.startswith("groups")).split())
    assert {"het0:0", "trainer:0", "het1:1,2", "rollout:1,2"} < groups
    nothing_is_left(slurm, job)


def test_from_salloc_elsewhere_every_node_is_reached_by_srun(slurm: SlurmCluster, train: Callable[..., str]) -> None:
    done = slurm.run(["salloc", "--nodes=2", "--ntasks=2", "--gpus=3", "bash", "-c", train(0, 0)])
    assert [line.split()[0] for line in at(done.stdout)] == ["n0", "n1"]
    assert "2 nodes, and a daemon here for the script" in done.stderr


def test_a_step_that_holds_the_nodes_keeps_no_daemon_out(slurm: SlurmCluster, train: Callable[..., str]) -> None:
    holding = "srun --exclusive --nodes=2 --ntasks=2 sleep 600 & "
    job = slurm.submit(holding + train(0, 0).replace("exec ", "") + "; kill $!", "--nodes=2", "--ntasks=2")
    slurm.wait(job, seconds=60)
    assert "DONE" in slurm.output(job)


def test_a_prologue_runs_everywhere_and_its_failure_names_the_node(
    slurm: SlurmCluster, train: Callable[..., str]
) -> None:
    job = slurm.submit(train(0, 0, "--prologue", "export PROLOGUE=$SLURMD_NODENAME"), "--nodes=2", "--ntasks=2")
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    assert at(slurm.output(job)) == ["n0  n0", "n1  n1"]
    failing = "if [ $SLURMD_NODENAME = n1 ]; then echo no such module >&2; exit 3; fi"
    job = slurm.submit(train(0, 0, "--prologue", failing), "--nodes=2", "--ntasks=2")
    assert slurm.wait(job) == "FAILED"
    assert exit_code(slurm, job) == "255:0"
    text = slurm.output(job)
    assert "1 of 2 nodes could not be started:" in text
    assert re.search(r"^  n1  the prologue 'if .*' ended with exit status 3$", text, re.MULTILINE), text
    assert "stderr | no such module" in text


def test_a_missing_interpreter_is_named_by_run_and_check(slurm: SlurmCluster, train: Callable[..., str]) -> None:
    job = slurm.submit(launch("--check", "--python", "/nix/python"), "--nodes=2", "--ntasks=2")
    assert slurm.wait(job) == "FAILED"
    assert "  /nix/python cannot be run there: No such file or directory" in slurm.output(job)
    job = slurm.submit(launch("--check"), "--nodes=2", "--ntasks=2")
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    assert [line.split()[:2] for line in slurm.output(job).splitlines() if re.match(r"n\d ", line)] == [
        ["n0", "ok"],
        ["n1", "ok"],
    ]


def test_a_folder_is_shipped_over_srun(slurm: SlurmCluster, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(
        PROGRAM.replace("READY", "READY {__file__}").replace('print("READY', 'print(f"READY')
    )
    (folder / "large").write_bytes(os.urandom(8 << 20))
    line = launch("--sync", str(folder), str(folder / "train.py"), "0", "0")
    job = slurm.submit(line.replace("cd ", f"export PYTHONPATH={CHECKOUT}; cd "), "--nodes=2", "--ntasks=2")
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    assert "DONE" in slurm.output(job)
    assert f"--sync ships {folder}: 2 files" in slurm.output(job)
    nothing_is_left(slurm, job)


def test_a_step_with_several_tasks_does_not_start_several_runs(slurm: SlurmCluster, train: Callable[..., str]) -> None:
    job = slurm.submit(f"srun bash -c {subprocess.list2cmdline([train(0, 0)])}", "--nodes=2", "--ntasks=2")
    slurm.wait(job)
    assert "each of the 2 tasks of this step ($SLURM_STEP_NUM_TASKS) starts rlinf-launch" in slurm.output(job)
    assert sys.executable not in processes_of("")
