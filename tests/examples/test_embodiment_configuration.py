from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from configuration import SCHEMA, last_step

from rlinf_async.errors import ConfigError

DEFAULT = "inverted_pendulum_ppo"


@pytest.mark.parametrize("name", sorted(path.stem for path in SCHEMA.folder.glob("*.yaml")))
def test_every_shipped_configuration_is_valid(name: str) -> None:
    cfg = SCHEMA.load(name)
    assert cfg.rollout.model.model_path is None
    assert cfg.cluster.component_placement == {}


def test_rollout_starts_from_the_actors_model_unless_told_otherwise() -> None:
    assert SCHEMA.load(DEFAULT, ["actor.model.model_path=a.pt"]).rollout.model.model_path == "a.pt"


def test_a_placement_on_the_command_line_is_text_and_never_a_number_to_base_60() -> None:
    cfg = SCHEMA.load(DEFAULT, ["cluster.component_placement.rollout=1:0"])
    assert cfg.cluster.component_placement == {"rollout": "1:0"}


def placing(folder: Path, rules: str) -> Path:
    """The default configuration with these rules of placement."""
    text = (SCHEMA.folder / f"{DEFAULT}.yaml").read_text()
    path = folder / "placing.yaml"
    path.write_text(text.replace("  num_nodes: 1\n", f"  num_nodes: 1\n  component_placement: {rules}\n", 1))
    return path


def test_components_may_share_a_rule(tmp_path: Path) -> None:
    shared = placing(tmp_path, '{"actor,env": "0:0-1"}')
    assert SCHEMA.load(str(shared)).cluster.component_placement == {"actor,env": "0:0-1"}


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("algorithm.gama=0.9", "unknown key algorithm.gama: did you mean algorithm.gamma?"),
        ("runer.seed=1", "unknown key runer: did you mean runner?"),
        ("runner.logger.path=x", "unknown key runner.logger.path: did you mean runner.logger.log_path?"),
        (
            "cluster.component_placement.rolout=0",
            "cluster.component_placement.rolout: did you mean cluster.component_placement.rollout?",
        ),
        ("actor.optim.momentum=0.9", "unknown key actor.optim.momentum: there is lr, eps, clip_grad, lr_schedule"),
        ("runner.seed=many", "runner.seed: Value 'many'"),
        ("runner=3", "runner: "),
        ("runner.seed", "expected key=value"),
        ("runner.seed=-1", "runner.seed must not be negative, not -1"),
        ("algorithm.gamma=1.5", "algorithm.gamma must be at most 1, not 1.5"),
        ("algorithm.rollout_steps=0", "algorithm.rollout_steps must be at least 1, not 0"),
        ("rollout.pipeline_stage_num=-1", "rollout.pipeline_stage_num must not be negative, not -1"),
        ("runner.mode=offline", "runner.mode must be sync or async, not offline"),
        ("rollout.placement=with_actor", "rollout.placement must be auto, with_env or workers, not with_actor"),
        ("algorithm.max_staleness=0", "algorithm.max_staleness must be at least 1, not 0"),
        ("algorithm.importance_cap=0.5", "algorithm.importance_cap must be at least 1, not 0.5"),
        ("actor.device=gpu", "actor.device must be auto, cpu or cuda, not gpu"),
        ("runner.only_eval=true", "runner.only_eval needs rollout.model.model_path"),
    ],
)
def test_a_bad_override_is_named_with_its_fix(override: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SCHEMA.load(DEFAULT, [override])
    assert complaint in str(caught.value)
    assert "command line" in str(caught.value)


def test_a_rollout_group_that_would_have_nothing_to_do_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.placement leaves nothing to place: take rollout out of"):
        SCHEMA.load(DEFAULT, ["rollout.placement=with_env", "cluster.component_placement.rollout=0"])


@pytest.mark.parametrize(("max_steps", "expected"), [(-1, 150), (20, 20), (500, 150), (0, 0)])
def test_max_steps_bounds_the_epochs(max_steps: int, expected: int) -> None:
    cfg = SCHEMA.load(DEFAULT, ["runner.max_epochs=150", f"runner.max_steps={max_steps}"])
    assert last_step(cfg) == expected


def test_an_unknown_key_under_the_launcher_is_one_line_without_a_traceback() -> None:
    script = SCHEMA.folder.parent / "train_embodied_agent.py"
    command = [sys.executable, "-m", "rlinf_launcher", "-q", str(script), "actor.optim.lrr=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    text = "error: command line, 'actor.optim.lrr=1': unknown key actor.optim.lrr: did you mean actor.optim.lr?\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", text)
