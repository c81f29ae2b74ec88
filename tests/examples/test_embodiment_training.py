"""The whole script, small: processes, groups, calls, files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

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


def run_script(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *SMALL, f"runner.logger.log_path={folder}", *overrides]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder.parent, check=False)


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


@pytest.mark.slow
def test_a_run_reports_each_step_with_its_phases_and_a_final_evaluation(two_steps: Path) -> None:
    lines = (two_steps / "stdout").read_text().splitlines()
    steps = [line for line in lines if line.startswith("step ")]
    assert len(steps) == 2
    for phase in ("return", "steps/s", "sync", "interact", "generate", "recv", "advantages", "train", "carry"):
        assert phase in steps[-1]
    assert lines[-1].startswith("evaluation of InvertedPendulum-v5 (training seed 0, 128 samples in ")
    evaluation = json.loads((two_steps / "evaluation.json").read_text())
    assert evaluation["samples"] == 2 * SAMPLES_PER_STEP
    assert len(evaluation["returns"]) == len(evaluation["episode_seeds"]) == 3
    assert evaluation["min_return"] == min(evaluation["returns"])
    assert list((two_steps / "tensorboard").iterdir())


@pytest.mark.slow
def test_the_same_seed_gives_the_same_policy_bit_for_bit(two_steps: Path) -> None:
    again = two_steps.with_name("again")
    assert run_script(again, "runner.max_steps=2").returncode == 0
    weights, expected = checkpoint(again)["policy"], checkpoint(two_steps)["policy"]
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


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


def test_a_bad_configuration_ends_in_one_line_and_a_failure(tmp_path: Path) -> None:
    ended = run_script(tmp_path / "run", "runner.sede=1")
    assert ended.returncode == 1
    assert ended.stderr == "error: command line, 'runner.sede=1': unknown key runner.sede: did you mean runner.seed?\n"
