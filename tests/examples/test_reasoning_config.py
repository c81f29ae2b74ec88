from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from batches import Batches
from common.checkpoint import save_checkpoint
from omegaconf import OmegaConf
from placing import place
from reasoning_config import SCHEMA, clip_range, last_step
from reasoning_runner import ReasoningRunner

from rlinf_async.address import NodeInfo
from rlinf_async.errors import ConfigError

DEFAULT = "two_terms_disaggregated"
SHIPPED = sorted(path.stem for path in SCHEMA.folder.glob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_configuration_is_valid_and_holds_512_problems_out(name: str) -> None:
    cfg = SCHEMA.load(name)
    assert cfg.data.held_out_size == 512
    assert cfg.rollout.model.model_path is None
    assert Batches.of(cfg, actor_ranks=2 if "collocated" in name else 1).responses == 512


def test_the_clip_range_is_the_same_to_both_sides_unless_told_otherwise() -> None:
    assert clip_range(SCHEMA.load(DEFAULT)) == (0.2, 0.2)
    assert clip_range(SCHEMA.load(DEFAULT, ["algorithm.clip_ratio_high=0.28"])) == (0.2, 0.28)


def test_rollout_starts_from_the_actors_model_unless_told_otherwise() -> None:
    assert SCHEMA.load(DEFAULT, ["actor.model.model_path=warm"]).rollout.model.model_path == "warm"


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("runner.max_epoch=1", "unknown key runner.max_epoch: did you mean runner.max_epochs?"),
        ("actor.model.modelpath=x", "unknown key actor.model.modelpath: did you mean actor.model.model_path?"),
        (
            "actor.tokenizer.tokenizer=x",
            "unknown key actor.tokenizer.tokenizer: did you mean actor.tokenizer.tokenizer_model?",
        ),
        ("runner.logger.path=x", "unknown key runner.logger.path: did you mean runner.logger.log_path?"),
        ("actor.global_batch=1", "unknown key actor.global_batch: did you mean actor.global_batch_size?"),
        (
            "cluster.component_placement.env=0",
            "unknown key cluster.component_placement.env: there is actor, rollout, reward",
        ),
        ("runner.max_steps=many", "runner.max_steps: Value 'many'"),
        ("algorithm.group_size=1", "algorithm.group_size must be at least 2"),
        ("rollout.max_staleness=2", "rollout.max_staleness must be 0 or 1, not 2"),
        ("actor.model.hidden_size=60", "actor.model.hidden_size must be a multiple of twice the heads (4), not 60"),
        ("algorithm.temperature=0", "algorithm.temperature must be above 0, not 0.0"),
        ("actor.optim.lr_schedule=step", "actor.optim.lr_schedule must be constant or linear, not step"),
        ("data.train_size=8", "data.train_size must be at least data.rollout_batch_size (64), not 8"),
        ("runner.only_eval=true", "runner.only_eval needs rollout.model.model_path"),
        ("runner.seed", "expected key=value"),
        ("data.task=chess", "data.task must be arithmetic or countdown, not chess"),
        ("algorithm.loss_agg_func=mean", "must be token-mean, seq-mean-token-mean or seq-mean-token-sum, not mean"),
        ("algorithm.kl_penalty_type=k4", "algorithm.kl_penalty_type must be k1, k2, k3, low_var_kl or abs, not k4"),
        ("algorithm.clip_ratio_high=0", "algorithm.clip_ratio_high must be above 0, not 0.0"),
        ("algorithm.clip_ratio_low=1", "algorithm.clip_ratio_low must be below 1"),
        ("algorithm.importance_sampling_clip=0", "algorithm.importance_sampling_clip must be above 0, not 0.0"),
        ("algorithm.max_num_gen_batches=0", "algorithm.max_num_gen_batches must be at least 1, not 0"),
    ],
)
def test_a_bad_override_is_named_with_its_fix(override: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SCHEMA.load(DEFAULT, [override])
    assert complaint in str(caught.value)
    assert "command line" in str(caught.value)


def test_an_unknown_key_in_a_file_is_named_with_the_file(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text((SCHEMA.folder / f"{DEFAULT}.yaml").read_text().replace("clip_ratio:", "clip_ration:"))
    with pytest.raises(
        ConfigError, match=r"broken\.yaml:\d+: unknown key algorithm.clip_ration: did you mean .*clip_ratio"
    ):
        SCHEMA.load(str(broken))


def test_an_unplaced_component_is_an_error(tmp_path: Path) -> None:
    partial = tmp_path / "partial.yaml"
    partial.write_text((SCHEMA.folder / f"{DEFAULT}.yaml").read_text().replace("    reward: 1\n", ""))
    with pytest.raises(ConfigError, match="must place actor, rollout, reward"):
        SCHEMA.load(str(partial))


def test_the_configuration_cannot_be_changed_afterwards() -> None:
    with pytest.raises(FrozenInstanceError):
        SCHEMA.load(DEFAULT).runner.seed = 1


@pytest.mark.parametrize(("max_steps", "expected"), [(-1, 128), (20, 20), (500, 128), (0, 0)])
def test_max_steps_bounds_the_epochs(max_steps: int, expected: int) -> None:
    cfg = SCHEMA.load(DEFAULT, ["runner.max_epochs=1", f"runner.max_steps={max_steps}"])
    assert last_step(cfg) == expected


@pytest.mark.parametrize(
    ("override", "actor_ranks", "complaint"),
    [
        ("rollout.batch_size=48", 1, r"rollout_batch_size \(64\) .* rollout\.batch_size \(48\)"),
        ("rollout.batch_size=64", 2, r"rollout\.batch_size \(1\) .* number of actor ranks \(2\)"),
        ("actor.global_batch_size=100", 1, r"group_size \(512\) .*actor\.global_batch_size \(100\)"),
        ("actor.warm_start.batch_size=255", 2, r"warm_start\.batch_size \(255\) .* actor ranks \(2\)"),
    ],
)
def test_sizes_that_do_not_divide_are_named(override: str, actor_ranks: int, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Batches.of(SCHEMA.load(DEFAULT, [override]), actor_ranks)


def resume(tmp_path: Path, saved: list[str], *overrides: str) -> dict[str, Any] | None:
    """The checkpoint that one run has saved, as another one reads it."""
    config = OmegaConf.to_yaml(OmegaConf.structured(SCHEMA.load(DEFAULT, saved)))
    save_checkpoint(tmp_path / "checkpoints", 4, {"step": 4, "before": {}, "config": config})
    cfg = SCHEMA.load(DEFAULT, [f"runner.resume_dir={tmp_path}", *overrides])
    return ReasoningRunner._load(cast(ReasoningRunner, SimpleNamespace(cfg=cfg)), tmp_path)


@pytest.mark.parametrize(
    ("saved", "overrides", "complaint"),
    [
        (
            ["actor.model.hidden_size=32"],
            (),
            "checkpoints/latest.pt was saved with actor.model.hidden_size=32, and this run has 64: write "
            "actor.model.hidden_size=32, or begin without this checkpoint",
        ),
        (["data.task=countdown"], (), "was saved with data.task=countdown, and this run has arithmetic: write data.ta"),
        (
            ["algorithm.kl_beta=0"],
            ("algorithm.kl_beta=0.1",),
            " has no reference model: it was saved with algorithm.kl_beta=0, and this run has 0.1: write "
            "algorithm.kl_beta=0, or begin without this checkpoint",
        ),
    ],
)
def test_a_checkpoint_of_another_model_names_the_key_both_values_and_the_file(
    saved: list[str], overrides: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        resume(tmp_path, saved, *overrides)
    assert str(tmp_path) in str(caught.value)
    assert complaint in str(caught.value)


def test_a_checkpoint_is_resumed_where_a_folder_says_the_models_sizes(tmp_path: Path) -> None:
    found = resume(tmp_path, ["actor.model.hidden_size=32"], "actor.model.model_path=warm", "algorithm.kl_beta=0")
    assert found is not None
    assert found["step"] == 4


@pytest.mark.parametrize("accelerators", [0, 1])
@pytest.mark.parametrize("name", SHIPPED)
def test_one_accelerator_or_none_is_enough_for_every_shipped_configuration(name: str, accelerators: int) -> None:
    devices = tuple(map(str, range(accelerators)))
    cluster = SimpleNamespace(nodes=[NodeInfo(0, "n0", "10.0.0.1", 2, devices, "NV_GPU" if devices else "NO_ACCEL")])
    cfg = SCHEMA.load(name)
    placement = place(cfg, cluster)
    for component in ("actor", "rollout", "reward"):
        (worker,) = placement.get_strategy(component).get_placement(cluster)
        assert (worker.cluster_node_rank, list(worker.global_accelerator_ids)) == (0, list(range(accelerators)))
    assert Batches.of(cfg, actor_ranks=1).responses == 512
