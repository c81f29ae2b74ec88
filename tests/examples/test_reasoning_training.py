"""The whole script, small: processes, groups, engines, files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from safetensors.torch import load_file

SCRIPT = Path(__file__).parents[2] / "examples" / "reasoning" / "main_grpo.py"

SMALL = [
    *("data.train_size=64", "data.rollout_batch_size=8", "data.held_out_size=33"),
    *("algorithm.group_size=4", "actor.global_batch_size=16", "actor.model.hidden_size=16"),
    *("actor.warm_start.steps=4", "actor.warm_start.batch_size=64", "runner.eval_interval=0", "runner.eval_samples=4"),
]
VERSIONS = ["rollout.reproducible=true", "rollout.max_staleness=0", "runner.eval_samples=1"]
"""The promise of equal models: the same versions of the weights sample the same responses."""


def run_script(folder: Path, config: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    options = ["--config", config, *SMALL, f"runner.logger.log_path={folder}", *overrides]
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=folder.parent, check=False)


def trained(folder: Path, config: str, *overrides: str) -> str:
    ended = run_script(folder, config, *overrides)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def evaluation(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "evaluation.json").read_text())
    return result


def steps(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("step ") and " | " in line]


def equal(one: Path, other: Path) -> bool:
    weights, expected = (load_file(folder / "model.safetensors") for folder in (one, other))
    return all(weights[name].equal(expected[name]) for name in expected)


@pytest.fixture(scope="module")
def disaggregated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "first"
    output = trained(folder, "two_terms_disaggregated", "runner.max_steps=3", "runner.eval_interval=2")
    (folder / "stdout").write_text(output)
    return folder


@pytest.mark.slow
def test_a_run_reports_each_step_and_the_held_out_accuracy_before_and_after(disaggregated: Path) -> None:
    output = (disaggregated / "stdout").read_text()
    lines = steps(output)
    assert len(lines) == 3
    for word in ("reward", "length", "no signal", "wait_for_responses", "train", "publish"):
        assert word in lines[-1]
    assert "warm start: 4 steps in" in output
    assert "step 2: accuracy" in output
    told = evaluation(disaggregated)
    assert (told["steps"], told["responses"], told["held_out_problems"]) == (3, 3 * 32, 33)
    assert {"pass@1_before", "pass@4_before", "pass@1", "pass@4", "accuracy_before"} <= told.keys()
    assert 0 <= told["accuracy"] <= 1
    assert output.splitlines()[-1].startswith("evaluation (seed 0, 3 steps, ")
    assert list((disaggregated / "tensorboard").iterdir())


@pytest.mark.slow
def test_two_actors_share_a_model_and_learn_from_responses_of_the_newest_weights(tmp_path: Path) -> None:
    one_update = ("actor.global_batch_size=32", "algorithm.kl_beta=0.1", "actor.gradient_checkpointing=true")
    output = trained(tmp_path / "run", "two_terms_collocated", "runner.max_steps=2", *one_update)
    assert "2 actor, 2 rollout and 1 reward workers" in output
    assert [line.split("staleness ")[1][:3] for line in steps(output)] == ["0.0", "0.0"]
    # Actor and engines agree on the probability of every token: they have the same weights.
    assert [line.split("kl ")[1].split()[0] for line in steps(output)] == ["0.0000"] * 2


@pytest.mark.training
def test_two_actors_make_the_steps_of_one(tmp_path: Path) -> None:
    shared = [
        *VERSIONS,
        "actor.global_batch_size=32",
        "algorithm.loss_agg_func=token-mean",
        "actor.warm_start.steps=40",
    ]
    shared += ["runner.max_steps=2", "data.largest=15", "actor.optim.lr=0.002"]
    for gpus in (1, 2):
        trained(tmp_path / str(gpus), "two_terms_collocated", *shared, f"cluster.fake_gpus={gpus}")
    start, one, two = (
        load_file(tmp_path / folder / "model.safetensors") for folder in ("1/warm_start", "1/trained", "2/trained")
    )
    moved = sum((one[name] - start[name]).abs().sum() for name in one)
    apart = sum((one[name] - two[name]).abs().sum() for name in one)
    assert moved > 1
    assert apart < 0.01 * moved


@pytest.mark.training
@pytest.mark.parametrize("gpus", ["1", "null"])
@pytest.mark.parametrize("config", ["two_terms_disaggregated", "two_terms_collocated"])
def test_one_accelerator_or_none_is_enough_to_train(tmp_path: Path, config: str, gpus: str) -> None:
    output = trained(tmp_path / "run", config, "runner.max_steps=2", f"cluster.fake_gpus={gpus}")
    assert "1 actor, 1 rollout and 1 reward workers" in output


@pytest.mark.training
def test_a_run_that_is_resumed_ends_with_the_model_of_one_that_was_not(tmp_path: Path) -> None:
    """However many engines share the requests, and whatever had been sampled beyond the checkpoint."""
    one, other = tmp_path / "one", tmp_path / "other"
    shared = [*VERSIONS, "algorithm.kl_beta=0.1", "actor.warm_start.steps=40", "data.largest=15"]
    trained(one, "two_terms_disaggregated", "runner.max_steps=4", *shared)
    more = ["runner.save_interval=2", "cluster.fake_gpus=3", "cluster.component_placement.rollout=1-2"]
    trained(other, "two_terms_disaggregated", "runner.max_steps=4", *shared, *more)
    (other / "checkpoints" / "latest").unlink()
    (other / "checkpoints" / "latest").symlink_to("step_000002")
    output = trained(other, "two_terms_disaggregated", "runner.max_steps=4", "runner.resume_dir=auto", *shared, *more)
    assert "resuming at step 2 from" in output
    assert len(steps(output)) == 2
    assert equal(one / "trained", other / "trained")
    assert not equal(one / "trained", one / "warm_start")


@pytest.mark.training
@pytest.mark.parametrize("config", ["two_terms_disaggregated", "two_terms_collocated"])
def test_a_run_goes_on_after_deaths_of_engine_judge_and_actor(tmp_path: Path, config: str) -> None:
    supervised = [f"cluster.supervision.{name}.restart=rank" for name in ("rollout", "reward")]
    supervised += ["cluster.supervision.actor.restart=group", "runner.save_interval=4", "runner.max_steps=16"]
    command = [
        sys.executable,
        SCRIPT,
        "--config",
        config,
        *SMALL,
        *supervised,
        f"runner.logger.log_path={tmp_path}/run",
    ]
    victims = {"step  5/16": "rollout:0", "step  7/16": "reward:0", "step 10/16": "actor:0"}
    output = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path) as job:
        assert job.stdout is not None
        for line in job.stdout:
            output.append(line)
            run = output[0].split()[2].rstrip(":")  # rlinf run 9337d757: logs in …
            if victim := victims.pop(line[:10], None):
                control = Path(sys.executable).with_name("rlinf-ctl")
                subprocess.run([control, "kill", "--run", run, victim], check=True)
    assert job.returncode == 0, "".join(output)
    assert not victims
    assert sum(line.startswith("resuming at step") for line in output) == 1


@pytest.mark.training
def test_a_model_is_trained_further_on_rows_of_a_file_and_evaluated_alone(disaggregated: Path, tmp_path: Path) -> None:
    (tmp_path / "own_rewards.py").write_text(
        "def length(prompt, tokens, meta):\n    return meta['scale'] * len(tokens)\n"
    )
    rows = "".join(json.dumps({"prompt": f"{number}+1=", "meta": {"scale": 0.1}}) + "\n" for number in range(16))
    (tmp_path / "rows.jsonl").write_text(rows)
    model = disaggregated / "trained"
    own = [
        *(f"data.train_path={tmp_path}/rows.jsonl", f"data.eval_path={tmp_path}/rows.jsonl"),
        *("reward.function=own_rewards.length", "reward.truncated=null", f"actor.model.model_path={model}"),
    ]
    further = subprocess.run(
        [sys.executable, SCRIPT, *SMALL, *own, "runner.max_steps=1", f"runner.logger.log_path={tmp_path}/further"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        check=False,
    )
    assert further.returncode == 0, further.stdout + further.stderr
    assert "warm start" not in further.stdout
    assert evaluation(tmp_path / "further")["held_out_problems"] == 16
    overrides = (f"rollout.model.model_path={model}", "runner.only_eval=true")
    trained(tmp_path / "alone", "two_terms_collocated", *overrides)
    assert evaluation(tmp_path / "alone")["accuracy"] == evaluation(disaggregated)["accuracy"]
    assert not (tmp_path / "alone" / "trained").exists()


@pytest.mark.training
@pytest.mark.parametrize(
    ("config", "overrides", "complaint"),
    [
        ("two_terms_collocated", ["rollout.max_staleness=1"], "error: rollout.max_staleness must be 0 where actor and"),
        ("two_terms_disaggregated", ["cluster.component_placement.rollout=7"], "error: "),
        ("two_terms_disaggregated", ["data.largest=3"], "error: data: there are too few problems of Arithmetic("),
        ("two_terms_disaggregated", ["reward.function=nowhere.reward"], "error: reward.function: 'nowhere.reward' can"),
        (
            "two_terms_disaggregated",
            ["data.prompt='{problem}?'"],
            "error: data.prompt: the model that is made here",
        ),
    ],
)
def test_what_does_not_fit_ends_in_one_line_and_a_failure(
    tmp_path: Path, config: str, overrides: list[str], complaint: str
) -> None:
    ended = run_script(tmp_path / "run", config, *overrides)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(complaint)
    assert "Traceback" not in ended.stderr


@pytest.mark.training
def test_a_worker_without_its_model_ends_the_run_with_the_key(tmp_path: Path) -> None:
    ended = run_script(tmp_path / "run", "two_terms_disaggregated", "actor.model.model_path=nowhere")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("error: model_path: no model and tokenizer in nowhere")


@pytest.mark.training
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed: pip install wandb")
def test_figures_go_to_weights_and_biases_where_asked_for(tmp_path: Path) -> None:
    trained(tmp_path / "run", "two_terms_disaggregated", "runner.max_steps=1", "runner.logger.wandb=offline")
    [offline] = (tmp_path / "run" / "wandb").glob("offline-run-*")
    assert list(offline.glob("run-*.wandb"))


@pytest.mark.engines
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make engines runs this")
@pytest.mark.parametrize("engine", ["vllm", "http"])
def test_engines_of_vllm_sample_with_the_actors_weights(tmp_path: Path, engine: str) -> None:
    output = trained(
        tmp_path / "run",
        "two_terms_disaggregated",
        *(f"rollout.engine={engine}", "runner.max_steps=3", "actor.global_batch_size=32", "rollout.max_staleness=0"),
    )
    assert [line.split("kl ")[1].split()[0] for line in steps(output)] == ["0.0000"] * 3
    assert [line.split("staleness ")[1][:3] for line in steps(output)] == ["0.0"] * 3


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
