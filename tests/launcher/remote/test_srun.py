"""Command lines for Slurm's srun, and explanations of its errors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from rlinf_async._wire.remote_exit import RemoteExit
from rlinf_launcher.options import Options
from rlinf_launcher.remote.bootstrap import BOOTSTRAP
from rlinf_launcher.remote.host import Host, SlurmNode
from rlinf_launcher.remote.srun import srun_connector


def words(node: SlurmNode | None = None, host: Host | None = None, **options: object) -> list[str]:
    place = host or Host("n1", slurm=node or SlurmNode())
    return list(srun_connector(place, Options(**options), "/opt/python").argv)  # type: ignore[arg-type]


def said(stderr: str, code: int = 1, **options: object) -> str:
    reached = srun_connector(Host("n1", slurm=SlurmNode(gpus=2)), Options(**options), "/opt/python")  # type: ignore[arg-type]
    return reached.explain(RemoteExit(code, (), tuple(stderr.splitlines())))


def test_the_step_is_one_task_with_the_whole_node() -> None:
    step = words(SlurmNode(gpus=4))
    assert step[step.index("srun") :] == [
        *("srun", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--mem=0", "--mpi=none", "--export=ALL"),
        *("--chdir=/", "--job-name=rlinf", "--nodelist=n1", "--gpus=4", "--", "/opt/python", "-c", BOOTSTRAP),
    ]


def test_the_jobs_task_variables_do_not_restrict_the_step() -> None:
    step = words()
    unset = step[1 : step.index("srun")]
    assert step[0] == "env"
    assert set(unset[::2]) == {"-u"}
    assert {"SLURM_GPUS", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_CPU", "SLURM_STDOUTMODE"} < set(unset[1::2])
    assert "SLURM_JOB_ID" not in unset


def test_gpus_are_asked_for_only_where_the_node_has_some() -> None:
    assert not any(word.startswith("--gpus") for word in [*words(SlurmNode(gpus=0)), *words(SlurmNode())])


def test_a_component_of_a_heterogeneous_job_is_named() -> None:
    assert "--het-group=1" in words(SlurmNode(component=1))
    assert not any(word.startswith("--het-group") for word in words())


def test_the_hosts_own_interpreter_wins_over_that_of_all_hosts() -> None:
    assert words(python="/b/python")[-3] == "/b/python"
    assert words(host=Host("n1", python="/a/python", slurm=SlurmNode()), python="/b/python")[-3] == "/a/python"


@pytest.mark.parametrize("was_killed", [False, True], ids=["guardian lives", "guardian was killed"])
def test_the_ending_step_waits_for_the_guardian(was_killed: bool, tmp_path: Path) -> None:
    run_dir = tmp_path / "rlinf-0-a b"
    (run_dir / "node-1").mkdir(parents=True)
    guardian = subprocess.Popen(
        ["sh", "-c", f"trap 'sleep 0.3; touch {tmp_path}/ended; exit' TERM; echo; sleep 60 & wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert guardian.stdout is not None
    with guardian, guardian.stdout:
        guardian.stdout.readline()
        if was_killed:
            os.killpg(guardian.pid, signal.SIGKILL)
            guardian.wait()
        reached = srun_connector(Host("n1", slurm=SlurmNode()), Options(), "/opt/python")
        command = reached.end_command({"pid": guardian.pid, "run_dir": str(run_dir)})
        reaper = threading.Thread(target=guardian.wait)
        reaper.start()
        subprocess.run(command[command.index("--") + 1 :], stderr=subprocess.DEVNULL, timeout=20)
        assert (tmp_path / "ended").exists() == (not was_killed)
        assert not run_dir.exists()
        reaper.join()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(guardian.pid, signal.SIGKILL)


def test_an_ending_step_without_a_folder_removes_nothing() -> None:
    reached = srun_connector(Host("n1", slurm=SlurmNode()), Options(), "/opt/python")
    assert reached.end_command({"pid": 7, "run_dir": None})[-2:] == ("7", "")


@pytest.mark.parametrize(
    ("stderr", "cause", "hint"),
    [
        (
            "srun: error: n1: task 0: Exited with exit code 2\n"
            "slurmstepd-n1: error: execve(): /nix/python: No such file or directory",
            "/nix/python cannot be run there: No such file or directory",
            "--python PATH",
        ),
        (
            "srun: error: Unable to create step for job 12: Requested node configuration is not available",
            "srun: Requested node configuration is not available",
            "is n1 a node of this job? squeue --job $SLURM_JOB_ID; srun --overlap",
        ),
        (
            "srun: error: Unable to create step for job 8: Invalid generic resource (gres) specification",
            "srun: Invalid generic resource (gres) specification",
            "scontrol show job -d $SLURM_JOB_ID",
        ),
        (
            "srun: error: Unable to confirm allocation for job 999: Invalid job id specified\n"
            "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 999",
            "srun: Invalid job id specified",
            "the job has ended",
        ),
        (
            "srun: error: Unable to create step for job 12: Requested nodes are busy",
            "srun: Requested nodes are busy",
            "another step holds n1 for itself",
        ),
        (
            "srun: error: slurm_receive_msgs: [[localhost]:17822] failed: Socket timed out on send/recv operation\n"
            "srun: error: Task launch for StepId=12.6 failed on node n1: Socket timed out on send/recv operation\n"
            "srun: Job step aborted",
            "srun: Socket timed out on send/recv operation",
            "does slurmd run on n1? scontrol show node n1",
        ),
        (
            "slurmstepd-n1: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
            "srun: STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT",
            "sbatch --time",
        ),
        ("srun: unrecognized option '--overlap'", "srun: unrecognized option '--overlap'", "older than 20.11"),
    ],
)
def test_slurms_error_is_one_line_with_a_hint(stderr: str, cause: str, hint: str) -> None:
    first, *rest = said(stderr).splitlines()
    assert first == cause
    assert hint in rest[-1]


def test_remote_output_is_shown_where_slurm_explains_nothing() -> None:
    assert (
        said("Traceback\nKeyError: 1", 1)
        == "its process ended with exit code 1\nstderr | Traceback\nstderr | KeyError: 1"
    )


def test_a_srun_that_is_killed_is_told_as_that() -> None:
    assert said("", -9).startswith("its srun was killed by signal 9, on this machine")
