"""The whole script, small: processes, groups, calls, files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path
from textwrap import dedent
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
import torch

from rlinf_launcher.cli.control import main as control
from tests._support.trace_files import Trace

pytest.importorskip("mujoco")

SCRIPT = Path(__file__).parents[2] / "examples" / "embodiment" / "train_embodied_agent.py"

SMALL = [
    "env.total_num_envs=4",
    "algorithm.rollout_steps=16",
    "algorithm.update_epochs=2",
    "algorithm.target_kl=null",
    "actor.global_batch_size=32",
    "actor.micro_batch_size=8",
    "runner.eval.episodes=3",
    "runner.eval.interval=0",
]
SAMPLES_PER_STEP = 64


def run_script(folder: Path, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *SMALL, f"runner.logger.log_path={folder}", *overrides]
    options: dict[str, Any] = {"env": {**os.environ, **environment}, "cwd": folder.parent}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def checkpoint(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "checkpoints" / "latest.pt", weights_only=True)
    return state


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "first"
    ended = run_script(folder, "runner.max_steps=2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (folder / "stdout").write_text(ended.stdout)
    return folder


def test_a_run_reports_each_step_with_its_phases_and_a_final_evaluation(two_steps: Path) -> None:
    lines = (two_steps / "stdout").read_text().splitlines()
    steps = [line for line in lines if line.startswith("step ")]
    assert len(steps) == 2
    for phase in ("return", "steps/s", "sync", "rollout", "advantages", "train", "carry", "interact"):
        assert phase in steps[-1]
    assert lines[-1].startswith("evaluation of InvertedPendulum-v5 (training seed 0, 128 samples in ")
    evaluation = json.loads((two_steps / "evaluation.json").read_text())
    assert evaluation["samples"] == 2 * SAMPLES_PER_STEP
    assert len(evaluation["returns"]) == len(evaluation["episode_seeds"]) == 3
    assert evaluation["min_return"] == min(evaluation["returns"])
    assert list((two_steps / "tensorboard").iterdir())
    assert lines[0] == (
        "InvertedPendulum-v5, seed 0, sync: 1 env workers, inference in the env workers, 1 actor workers of 1 thread, "
        "64 samples a step"
    )


@pytest.fixture(scope="module")
def traced(two_steps: Path) -> Path:
    """The same once more, with a trace."""
    folder = two_steps.with_name("again")
    ended = run_script(folder, "runner.max_steps=2", RLINF_TRACE=str(folder.with_suffix(".json")))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


@pytest.mark.slow
def test_the_same_seed_gives_the_same_policy_bit_for_bit(two_steps: Path, traced: Path) -> None:
    weights, expected = checkpoint(traced)["policy"], checkpoint(two_steps)["policy"]
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_a_trace_of_the_script_holds_its_calls_channels_and_timers(traced: Path) -> None:
    trace = Trace(traced.with_suffix(".json"))  # which checks keys, nesting and arrows
    groups = {process.partition(":")[0] for process in trace.processes}
    assert groups == {"driver", "env", "actor"}
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


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_counters_optimizer_and_moments(two_steps: Path) -> None:
    resumed = two_steps.with_name("resumed")
    ended = run_script(resumed, "runner.max_steps=3", f"runner.resume_dir={two_steps}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [line.split("|")[0].strip() for line in ended.stdout.splitlines() if line.startswith("step ")] == [
        "step 3/3"
    ]
    state = checkpoint(resumed)
    assert (state["step"], state["samples"]) == (3, 3 * SAMPLES_PER_STEP)
    assert state["policy"]["moments.count"] == 3 * SAMPLES_PER_STEP
    updates = 3 * 2 * SAMPLES_PER_STEP // 32
    assert {entry["step"].item() for entry in state["optimizer"]["state"].values()} == {updates}


@pytest.mark.slow
def test_a_trained_policy_is_evaluated_without_training(two_steps: Path) -> None:
    folder = two_steps.with_name("only_eval")
    ended = run_script(folder, "runner.only_eval=true", f"rollout.model.model_path={two_steps}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    returns = json.loads((folder / "evaluation.json").read_text())["returns"]
    assert returns == json.loads((two_steps / "evaluation.json").read_text())["returns"]
    assert not (folder / "checkpoints").exists()


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An asynchronous run with more rollout than env workers."""
    return run_of_groups(
        tmp_path_factory.mktemp("asynchronous"),
        *("rollout.pipeline_stage_num=1", "cluster.component_placement.rollout=0:0-2"),
        *("runner.max_steps=6", "runner.mode=async", "algorithm.max_staleness=2"),
    )


def run_of_groups(folder: Path, *overrides: str) -> Path:
    ended = run_script(folder / "run", *overrides)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (folder / "run" / "stdout").write_text(ended.stdout)
    return folder / "run"


@pytest.mark.slow
def test_rollouts_use_the_newest_weights_and_asynchronous_ones_none_older_than_the_bound(
    two_steps: Path, asynchronous: Path
) -> None:
    steps = [line for line in (two_steps / "stdout").read_text().splitlines() if line.startswith("step ")]
    assert all("| staleness 0.00 |" in line for line in steps)
    steps = [line for line in (asynchronous / "stdout").read_text().splitlines() if line.startswith("step ")]
    assert len(steps) == 6
    for line in steps:
        assert 0.0 <= float(line.partition("staleness ")[2].split()[0]) <= 2.0


@pytest.mark.slow
def test_more_rollout_than_env_workers_exchange_with_them(asynchronous: Path) -> None:
    assert len(json.loads((asynchronous / "evaluation.json").read_text())["returns"]) == 3


@pytest.mark.training
def test_more_actors_than_stages_exchange_with_rollout_workers_that_share_these(tmp_path: Path) -> None:
    run = run_of_groups(
        tmp_path,
        *("cluster.component_placement.env=0", "cluster.component_placement.rollout=0:0-1", "runner.mode=async"),
        *("env.total_num_envs=8", "cluster.component_placement.actor=0:0-3", "actor.micro_batch_size=4"),
        "runner.max_steps=2",
    )
    assert len(json.loads((run / "evaluation.json").read_text())["returns"]) == 3


UNTIL_KILLED = ("runner.max_steps=8", "runner.save_interval=2", "algorithm.rollout_steps=32")


def curve(output: str) -> list[str]:
    """What the progress lines say but for times and speeds."""
    shown = [line.split("|")[:3] for line in output.splitlines() if line.startswith("step ")]
    return ["|".join(parts) for parts in shown]


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["with_env", pytest.param("workers", marks=pytest.mark.training)])
def test_a_run_whose_driver_is_killed_goes_on_as_if_it_had_not_been(tmp_path: Path, placement: str) -> None:
    """Bit for bit: simulators in the middle of their episodes, optimiser, moments and random numbers."""
    options = (*UNTIL_KILLED, f"rollout.placement={placement}")
    whole = run_script(tmp_path / "whole", *options)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    command = [sys.executable, str(SCRIPT), *SMALL, *options, f"runner.logger.log_path={tmp_path / 'killed'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            if line.startswith("step 5/8 "):
                driver.kill()
                break
    assert driver.returncode == -signal.SIGKILL
    resumed = run_script(tmp_path / "resumed", *options, f"runner.resume_dir={tmp_path / 'killed'}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert curve(resumed.stdout) == curve(whole.stdout)[-len(curve(resumed.stdout)) :]
    first = int(resumed.stdout.partition("resuming at step ")[2].split()[0])
    assert len(curve(resumed.stdout)) == 8 - first <= 4
    weights, expected = (checkpoint(tmp_path / name)["policy"] for name in ("resumed", "whole"))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    told, whole_told = (json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("resumed", "whole"))
    assert told["returns"] == whole_told["returns"]


@pytest.mark.training  # `tests/examples/test_simulated_training.py` kills the same runner's workers
@pytest.mark.parametrize("placement", ["with_env", "workers"])
def test_a_supervised_run_goes_on_whichever_worker_is_killed(tmp_path: Path, placement: str) -> None:
    kills = {1: "env:0" if placement == "with_env" else "rollout:0", 3: "actor:0"}
    supervision = [f"cluster.supervision.{name}.restart=rank" for name in ("env", "rollout")]
    supervision += ["cluster.supervision.actor.restart=group", "runner.max_steps=6", "runner.save_interval=2"]
    groups = {"env": "0:0-1", "actor": "0:0-1"} | ({"rollout": "0"} if placement == "workers" else {})
    options = [f"cluster.component_placement.{name}={rule}" for name, rule in groups.items()]
    options += [
        "algorithm.rollout_steps=512",
        "runner.eval.episodes=2",
        f"rollout.placement={placement}",
        f"runner.logger.log_path={tmp_path / 'run'}",
        *supervision,
    ]
    steps: list[int] = []
    command = [sys.executable, str(SCRIPT), *SMALL, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as driver:
        assert driver.stdout is not None
        told = []
        for line in driver.stdout:
            told.append(line)
            if step := re.match(r"step +(\d+)/6 ", line):
                steps.append(int(step[1]))
                if (who := kills.pop(steps[-1], None)) is not None:
                    assert control(["--run-dir", os.environ["XDG_RUNTIME_DIR"], "kill", who]) == 0
    text = "".join(told)
    assert driver.returncode == 0, text
    assert text.count("going on with what comes in its place") >= 2, text
    assert sorted(set(steps)) == list(range(1, 7))
    resumed = [int(line.split()[3]) for line in told if line.startswith("resuming at step ")]
    assert len(resumed) == 1, text
    assert resumed[0] in (2, 4, 6), "the actor goes back to the last checkpoint"
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["step"] == 6


DOOMED = """
    import asyncio, os, signal, sys, time
    from pathlib import Path

    sys.path.insert(0, sys.argv.pop(1))
    import train_embodied_agent as job
    from rlinf_async.errors import WorkerDied

    group, method = sys.argv.pop(1).split(".")
    killed = Path(sys.argv.pop(1))

    class Doomed(getattr(job, group)):
        pass

    async def dies(self, *args):
        def die():
            killed.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

        if self._rank == self._world_size - 1:
            asyncio.get_running_loop().call_later(0.2, die)
        return await getattr(super(Doomed, self), method)(*args)

    setattr(Doomed, method, dies)
    setattr(job, group, Doomed)
    if __name__ == "__main__":
        try:
            job.main(job.parse_arguments(sys.argv[1:]))
        except WorkerDied as died:
            raised = time.time()
            print(f"{died.group} {died.rank} {died.signal}", raised - float(killed.read_text()), sep="\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "who"),
    [
        ("EnvWorker.interact", "env 1 SIGKILL"),
        pytest.param("MultiStepRolloutWorker.generate", "rollout 0 SIGKILL", marks=pytest.mark.training),
        pytest.param("EmbodiedFSDPActor.recv_rollout_batch", "actor 1 SIGKILL", marks=pytest.mark.training),
    ],
)
def test_a_worker_that_is_killed_in_the_middle_of_a_rollout_ends_the_run(tmp_path: Path, method: str, who: str) -> None:
    """However its fellows wait for each other, and for it."""
    script = tmp_path / "doomed.py"
    script.write_text(dedent(DOOMED))
    command = [sys.executable, str(script), str(SCRIPT.parent), method, str(tmp_path / "killed"), *SMALL]
    groups = {"env": "0:0-1", "rollout": "0", "actor": "0:0-1"}
    placed = [f"cluster.component_placement.{name}={rule}" for name, rule in groups.items()]
    endless = ["algorithm.rollout_steps=1000000", f"runner.logger.log_path={tmp_path / 'run'}", *placed]
    ended = subprocess.run([*command, *endless], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    *_, died, seconds = ended.stdout.splitlines()
    assert died == who
    assert float(seconds) < 5.0


def test_a_bad_configuration_ends_in_one_line_and_a_failure(tmp_path: Path) -> None:
    ended = run_script(tmp_path / "run", "runner.sede=1")
    assert ended.returncode == 1
    assert ended.stderr == "error: command line, 'runner.sede=1': unknown key runner.sede: did you mean runner.seed?\n"


@pytest.mark.slow
@pytest.mark.skipif(find_library("EGL") is None, reason="draws without a screen: install libegl1 and libgl1-mesa-dri")
@pytest.mark.parametrize("placement", ["with_env", pytest.param("workers", marks=pytest.mark.training)])
def test_a_video_shows_every_step_of_the_first_evaluated_episode(tmp_path: Path, placement: str) -> None:
    ended = run_script(
        tmp_path / "logs", "runner.max_steps=1", "runner.video=true", f"rollout.placement={placement}", MUJOCO_GL="egl"
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    evaluation = json.loads((tmp_path / "logs" / "evaluation.json").read_text())
    decode = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(tmp_path / "logs" / "video.mp4")]
    raw = subprocess.run([*decode, "-f", "rawvideo", "-pix_fmt", "gray", "-"], capture_output=True, check=True).stdout
    frames = np.frombuffer(raw, np.uint8).reshape(-1, 480, 480)
    assert len(frames) == evaluation["returns"][0] + 1  # a reward of 1 for every step but the last
    assert frames[0].std() > 5  # there is something to see
    assert (frames[0] != frames[-1]).any()  # and it moves


@pytest.mark.slow
def test_a_video_that_cannot_be_drawn_is_an_error_before_the_training(tmp_path: Path) -> None:
    ended = run_script(tmp_path / "logs", "runner.max_steps=1", "runner.video=true", MUJOCO_GL="disabled")
    assert ended.returncode == 1
    assert "runner.video: MuJoCo cannot draw with MUJOCO_GL=disabled" in ended.stderr
    assert "step 1/1" not in ended.stdout
