"""The whole script, small: processes, groups, channels, files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from safetensors.torch import load_file
from tokenizer import CharacterTokenizer

SCRIPT = Path(__file__).parents[2] / "examples" / "reasoning" / "main_grpo.py"

SMALL = [
    "data.train_size=64",
    "data.rollout_batch_size=8",
    "data.held_out_size=33",
    "data.selection_size=16",
    "rollout.batch_size=2",
    "algorithm.group_size=4",
    "actor.global_batch_size=16",
    "actor.micro_batch_size=4",
    "actor.model.hidden_size=16",
    "actor.warm_start.target_accuracy=0",
    "actor.warm_start.batch_size=64",
    "actor.warm_start.cool_down_steps=2",
    "runner.eval_interval=0",
]


def run_script(folder: Path, config: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    options = ["--config", config, *SMALL, f"runner.logger.log_path={folder}", *overrides]
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder.parent, check=False)


def evaluation(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "evaluation.json").read_text())
    return result


def steps(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("step ") and " | " in line]


@pytest.fixture(scope="module")
def disaggregated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "first"
    ended = run_script(folder, "two_terms_disaggregated", "runner.max_steps=3")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (folder / "stdout").write_text(ended.stdout)
    return folder


@pytest.mark.slow
def test_a_run_reports_each_step_and_the_held_out_accuracy_before_and_after(disaggregated: Path) -> None:
    output = (disaggregated / "stdout").read_text()
    lines = steps(output)
    assert len(lines) == 3
    for phase in ("reward", "length", "sync_model", "generate", "compute_advantages", "run_training"):
        assert phase in lines[-1]
    assert "warm start: " in output
    told = evaluation(disaggregated)
    assert (told["steps"], told["responses"], told["held_out_problems"]) == (3, 3 * 32, 33)
    assert {"pass@1_before", "pass@16_before", "pass@1", "pass@16"} <= told.keys()
    assert 0 <= told["accuracy_before"] <= 1
    assert 0 <= told["accuracy"] <= 1
    assert output.splitlines()[-1].startswith("evaluation (seed 0, 3 steps, ")
    assert list((disaggregated / "tensorboard").iterdir())


@pytest.mark.slow
def test_apart_the_responses_are_one_step_old_and_together_they_are_new(disaggregated: Path, tmp_path: Path) -> None:
    told = [line.split("staleness ")[1][0] for line in steps((disaggregated / "stdout").read_text())]
    assert told == ["0", "1", "1"]
    one_update = "actor.global_batch_size=32"
    ended = run_script(tmp_path / "together", "two_terms_collocated", "runner.max_steps=3", one_update)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 actor, 2 rollout and 1 reward workers" in ended.stdout
    assert [line.split("staleness ")[1][0] for line in steps(ended.stdout)] == ["0", "0", "0"]
    # Actor and rollout group agree on the probability of every token: they have the same weights.
    assert [line.split("kl ")[1].split()[0] for line in steps(ended.stdout)] == ["0.0000"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "gpus", "staleness"),
    [
        ("two_terms_disaggregated", "1", "1"),
        pytest.param("two_terms_disaggregated", "null", "1", marks=pytest.mark.training),
        pytest.param("two_terms_collocated", "1", "0", marks=pytest.mark.training),
        pytest.param("two_terms_collocated", "null", "0", marks=pytest.mark.training),
    ],
)
def test_one_accelerator_or_none_is_enough_to_train(tmp_path: Path, config: str, gpus: str, staleness: str) -> None:
    ended = run_script(tmp_path / "run", config, "runner.max_steps=2", f"cluster.fake_gpus={gpus}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 actor, 1 rollout and 1 reward workers" in ended.stdout
    assert [line.split("staleness ")[1][0] for line in steps(ended.stdout)] == ["0", staleness]


@pytest.mark.training
def test_the_same_seed_gives_the_same_model_bit_for_bit(tmp_path: Path) -> None:
    """However the rollout workers share the problems among themselves."""
    taught = [
        *("data.train_size=256", "data.largest=15", "actor.model.hidden_size=32"),
        *("actor.warm_start.target_accuracy=0.1", "algorithm.group_size=16", "actor.global_batch_size=64"),
    ]
    one, other = tmp_path / "one", tmp_path / "other"
    placed = ["cluster.component_placement.rollout=1-2", "cluster.component_placement.reward=0:0-1"]
    for folder, more in ((one, []), (other, ["cluster.fake_gpus=3", *placed])):
        ended = run_script(folder, "two_terms_disaggregated", "runner.max_steps=3", *taught, *more)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    weights, expected = (load_file(folder / "trained" / "model.safetensors") for folder in (one, other))
    start = load_file(one / "warm_start" / "model.safetensors")
    assert all(weights[name].equal(expected[name]) for name in expected)
    assert not all(start[name].equal(expected[name]) for name in expected)


@pytest.mark.training
def test_a_model_is_trained_further_with_a_reference_and_evaluated_alone(disaggregated: Path, tmp_path: Path) -> None:
    model, tokenizer = disaggregated / "trained", "actor.tokenizer.tokenizer_model"
    assert CharacterTokenizer.load(model, "").characters
    further = run_script(
        tmp_path / "further",
        "two_terms_disaggregated",
        f"actor.model.model_path={model}",
        f"{tokenizer}={model}",
        "runner.max_steps=1",
        "algorithm.kl_beta=0.1",
    )
    assert further.returncode == 0, further.stdout + further.stderr
    assert "warm start" not in further.stdout
    assert evaluation(tmp_path / "further")["accuracy_before"] == evaluation(disaggregated)["accuracy"]
    alone = run_script(
        tmp_path / "alone", "two_terms_collocated", f"rollout.model.model_path={model}", "runner.only_eval=true"
    )
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert evaluation(tmp_path / "alone")["accuracy"] == evaluation(disaggregated)["accuracy"]
    assert not (tmp_path / "alone" / "trained").exists()


@pytest.mark.training
def test_a_warm_start_that_gets_nowhere_says_what_to_do(tmp_path: Path) -> None:
    ended = run_script(
        tmp_path / "run",
        "two_terms_disaggregated",
        *("actor.warm_start.target_accuracy=1.0", "actor.warm_start.max_steps=1"),
    )
    assert ended.returncode == 1
    assert "raise actor.warm_start.max_steps or lower actor.warm_start.target_accuracy" in ended.stderr


@pytest.mark.training
@pytest.mark.parametrize(
    ("config", "overrides", "complaint"),
    [
        ("two_terms_collocated", ["rollout.max_staleness=1"], "error: rollout.max_staleness must be 0 where actor and"),
        ("two_terms_disaggregated", ["cluster.component_placement.rollout=7"], "error: "),
        ("two_terms_disaggregated", ["data.largest=3"], "error: data: there are too few problems of Arithmetic("),
    ],
)
def test_what_does_not_fit_ends_in_one_line_and_a_failure(
    tmp_path: Path, config: str, overrides: list[str], complaint: str
) -> None:
    ended = run_script(tmp_path / "run", config, *overrides)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(complaint)
    assert "Traceback" not in ended.stderr


def test_the_script_passes_its_arguments_on_and_names_a_bad_key(tmp_path: Path) -> None:
    ended = subprocess.run(
        [str(SCRIPT.with_name("run.sh")), "two_terms_collocated", "runner.sede=1"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHON": sys.executable},
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == "error: command line, 'runner.sede=1': unknown key runner.sede: did you mean runner.seed?\n"
