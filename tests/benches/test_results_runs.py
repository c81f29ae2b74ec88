"""Runs of the comparison: settings from the example's files, SB3's arguments, and a real run of the single file."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benches.contestant import ROOT
from benches.results.records import Failure, Key
from benches.results.runs import finished_run, run_all, train
from benches.results.tasks import EVALUATION_SEEDS, TASKS, read_settings
from benches.results.trainers import TRAINERS, Trainer


def module(name: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / folder))
    return importlib.import_module(name)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_configuration_whose_rollout_divides_into_minibatches(task: str) -> None:
    settings = read_settings(task, 3)
    assert (settings.env, settings.seed) == (task, 3)
    assert settings.num_envs * settings.rollout_steps % settings.minibatch_size == 0


def test_a_configuration_of_another_task_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reacher_ppo.yaml").write_text("env: {id: Hopper-v5}")
    with pytest.raises(ValueError, match=r"reacher_ppo.yaml: env.id is Hopper-v5, .* says Reacher-v5"):
        read_settings("Reacher-v5", 0, tmp_path)


def test_final_evaluations_have_the_examples_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    seeding = module("seeding", "examples/embodiment", monkeypatch)
    assert seeding.evaluation_seeds(len(EVALUATION_SEEDS)) == list(EVALUATION_SEEDS)


def test_sb3_gets_the_examples_hyperparameters(monkeypatch: pytest.MonkeyPatch) -> None:
    sb3 = module("sb3", "benches/results/references", monkeypatch)
    settings = read_settings("HalfCheetah-v5", 2)
    arguments = sb3.ppo_arguments(SimpleNamespace(**asdict(settings)))
    rate = arguments.pop("learning_rate")
    last = settings.updates - 1
    remaining = [1 - (update + 1) / settings.updates for update in (0, last)]  # what SB3 passes at an update
    assert [rate(value) for value in remaining] == pytest.approx([1e-3, 1e-3 / settings.updates])
    assert arguments == {
        "n_steps": 128,
        "batch_size": 512,
        "n_epochs": 8,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_range": 0.2,
        "normalize_advantage": True,
        "ent_coef": 0.0,
        "vf_coef": 0.25,
        "max_grad_norm": 0.5,
        "target_kl": 0.05,
        "stats_window_size": 20,
        "policy_kwargs": {
            "net_arch": {"pi": [64, 64], "vf": [64, 64]},
            "log_std_init": -0.5,
            "optimizer_kwargs": {"eps": 1e-5},
        },
        "seed": 64,
        "device": "cpu",
    }
    assert sb3.learning_rate(0.5, "constant", 10) == 0.5


@pytest.mark.slow
def test_the_single_file_trains_and_leaves_a_record(tmp_path: Path) -> None:
    settings = replace(
        read_settings("InvertedPendulum-v5", 1), num_envs=4, updates=3, minibatch_size=64, evaluation_seeds=[1, 2]
    )
    train(TRAINERS["single_file"], settings, tmp_path / "run", os.environ | {"OMP_NUM_THREADS": "1"})
    run = finished_run(Key(settings.env, "single_file", 1), settings, tmp_path / "run", jobs=2)
    assert run.samples == 3 * 4 * 64
    assert len(run.returns) == 2
    assert all(value >= 1 for value in run.returns)
    assert run.curve.samples == [256, 512, 768]
    assert 0 < run.curve.seconds[-1] <= run.training_seconds + 0.1
    assert set(run.versions) == {"torch", "gymnasium", "mujoco"}
    with pytest.raises(ValueError, match="samples is 768, the comparison's is 512"):
        finished_run(Key(settings.env, "single_file", 1), replace(settings, updates=2), tmp_path / "run", jobs=2)


def test_a_program_that_fails_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Trainer("failing", Path(sys.executable), lambda *_: ["-c", "raise SystemExit('no robot')"])
    absent = Trainer("absent", tmp_path / "python", lambda *_: [])
    monkeypatch.setitem(TRAINERS, "failing", failing)
    monkeypatch.setitem(TRAINERS, "absent", absent)
    monkeypatch.setattr("benches.results.runs.LOGS", tmp_path)
    keys = [Key("Reacher-v5", "failing", 0), Key("Reacher-v5", "absent", 0)]
    failures = {record.contestant: record for record in run_all(keys, jobs=2, beside=0)}
    assert all(isinstance(failure, Failure) for failure in failures.values())
    assert failures["failing"].error == "exit status 1: no robot"
    assert "'Peers' in benches/README.md says how to make it" in failures["absent"].error
