from __future__ import annotations

import os
import shutil
from dataclasses import FrozenInstanceError
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from checkpoints import Progress, checkpoint_to_resume, new_checkpoint, read_progress
from omegaconf import OmegaConf
from placing import place
from reasoning_config import SCHEMA, check_batches, clip_range, last_step
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
    check_batches(cfg, actor_ranks=2 if "collocated" in name else 1)


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
        ("rollout.option=x", "unknown key rollout.option: did you mean rollout.options?"),
        ("runner.logger.path=x", "unknown key runner.logger.path: did you mean runner.logger.log_path?"),
        ("actor.global_batch=1", "unknown key actor.global_batch: did you mean actor.global_batch_size?"),
        (
            "cluster.component_placement.env=0",
            "unknown key cluster.component_placement.env: there is actor, rollout, reward",
        ),
        ("runner.max_steps=many", "runner.max_steps: Value 'many'"),
        ("algorithm.group_size=1", "algorithm.group_size must be at least 2"),
        ("rollout.max_staleness=-1", "rollout.max_staleness must not be negative, not -1"),
        ("rollout.engine=sglang", "rollout.engine must be transformers, vllm or http, not sglang"),
        ("rollout.options={batch_size: 8}", "rollout.options.batch_size must be an engine's kind"),
        ("reward.deadline_s=0", "reward.deadline_s must be above 0, not 0.0"),
        ("reward.on_error=ignore", "reward.on_error must be raise or count, not ignore"),
        ("runner.logger.wandb=yes please", "runner.logger.wandb must be online or offline, not yes please"),
        ("data.train_path=rows.jsonl", "data.eval_path belongs to data.train_path: give both, or none"),
        ("data.eval_path=rows.jsonl", "data.eval_path belongs to data.train_path: give both, or none"),
        ("actor.optim.lr_schedule=step", "actor.optim.lr_schedule must be constant or linear, not step"),
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
    assert last_step(cfg, problems=8192) == expected


def test_more_problems_in_a_step_than_there_are_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"data\.rollout_batch_size \(64\) is more than the 63 problems there are"):
        last_step(SCHEMA.load(DEFAULT), problems=63)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ([], r"data\.eval_path"),
        (["data.eval_path=e"], r"reward\.function is needed with data\.train_path"),
        (["data.eval_path=e", "reward.function=a.b"], r"actor\.model\.model_path is needed with data\.train_path"),
    ],
)
def test_own_data_needs_a_reward_and_a_model(overrides: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        SCHEMA.load(DEFAULT, ["data.train_path=rows.jsonl", *overrides])


@pytest.mark.parametrize(
    ("override", "actor_ranks", "complaint"),
    [
        ("data.rollout_batch_size=65", 2, r"rollout_batch_size \(65\) .* number of actor ranks \(2\)"),
        ("actor.global_batch_size=100", 1, r"group_size \(512\) .*actor\.global_batch_size \(100\)"),
        ("actor.warm_start.batch_size=255", 2, r"warm_start\.batch_size \(255\) .* actor ranks \(2\)"),
    ],
)
def test_sizes_that_do_not_divide_are_named(override: str, actor_ranks: int, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check_batches(SCHEMA.load(DEFAULT, [override]), actor_ranks)


# -- checkpoints ----------------------------------------------------------------------------------------------------


def save(log_path: Path, step: int, *overrides: str) -> Path:
    config = OmegaConf.to_yaml(OmegaConf.structured(SCHEMA.load(DEFAULT, overrides)))
    with new_checkpoint(log_path, Progress(step, 64 * step, "warm", {"accuracy": 0.5}, config)) as folder:
        (folder / "model.safetensors").write_text(str(step))
    return log_path / "checkpoints" / f"step_{step:06d}"


def test_a_run_goes_on_from_the_latest_checkpoint_of_a_log_path_or_from_one_that_is_named(tmp_path: Path) -> None:
    first, second = save(tmp_path, 4), save(tmp_path, 8)
    cfg = SCHEMA.load(DEFAULT, [f"runner.logger.log_path={tmp_path}"])
    assert checkpoint_to_resume(cfg, "auto") == checkpoint_to_resume(cfg, str(tmp_path)) == second
    assert checkpoint_to_resume(cfg, str(first)) == first
    found = read_progress(first, cfg)
    assert (found.step, found.position, found.reference, found.before) == (4, 256, "warm", {"accuracy": 0.5})


def test_auto_begins_anew_where_there_is_no_checkpoint_and_a_name_must_have_one(tmp_path: Path) -> None:
    cfg = SCHEMA.load(DEFAULT, [f"runner.logger.log_path={tmp_path}"])
    assert checkpoint_to_resume(cfg, "auto") is checkpoint_to_resume(cfg, None) is None
    with pytest.raises(ConfigError, match=r"runner\.resume_dir: no checkpoint in .*: name a log path"):
        checkpoint_to_resume(cfg, str(tmp_path))


def test_a_checkpoint_that_broke_off_leaves_the_one_before(tmp_path: Path) -> None:
    first = save(tmp_path, 4)
    broken = new_checkpoint(tmp_path, Progress(8, 0, "", {}, ""))
    (broken.__enter__() / "model.safetensors").write_text("half")
    del broken
    cfg = SCHEMA.load(DEFAULT, [f"runner.logger.log_path={tmp_path}"])
    assert checkpoint_to_resume(cfg, "auto") == first
    assert save(tmp_path, 4) == first  # a run that went back saves the step again
    assert save(tmp_path, 8).is_dir()


def test_a_checkpoint_that_is_saved_again_is_there_while_the_old_one_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg, first = SCHEMA.load(DEFAULT, [f"runner.logger.log_path={tmp_path}"]), save(tmp_path, 4)
    removed, remove = [], shutil.rmtree

    def look(folder: Path, ignore_errors: bool) -> None:
        removed.append(folder.exists())
        remove(folder, ignore_errors)
        assert checkpoint_to_resume(cfg, "auto") == first

    monkeypatch.setattr(shutil, "rmtree", look)
    assert save(tmp_path, 4) == first
    assert removed == [False, False, True]


def test_a_link_that_a_killed_run_left_does_not_refuse_the_next_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / f".link.{os.getpid()}").symlink_to("step_000002")
    saved = save(tmp_path, 4)
    assert checkpoint_to_resume(SCHEMA.load(DEFAULT, [f"runner.logger.log_path={tmp_path}"]), "auto") == saved


async def test_a_restarted_actor_goes_on_from_a_checkpoint_of_this_run_alone(tmp_path: Path) -> None:
    save(tmp_path / "own", 8)
    resumed = save(tmp_path / "earlier", 4)
    supervised = [f"runner.logger.log_path={tmp_path}/own", "cluster.supervision.actor.restart=group"]
    runner, actor = ReasoningRunner.__new__(ReasoningRunner), AsyncMock()
    actor.is_ready.return_value = [False]
    runner._cfg, runner._actor = SCHEMA.load(DEFAULT, supervised), actor
    runner._progress, runner._checkpoint = Progress(3, 0, "", {}, ""), None
    with pytest.raises(RuntimeError, match="no weights"):
        await runner._go_back(RuntimeError("it has no weights"))
    runner._checkpoint = resumed
    await runner._go_back(RuntimeError("it has no weights"))
    actor.init_worker.assert_awaited_once_with(str(resumed))
    assert runner._progress.step == 4


def test_a_checkpoint_of_other_data_names_the_key_both_values_and_the_folder(tmp_path: Path) -> None:
    folder = save(tmp_path, 4, "data.task=countdown")
    with pytest.raises(ConfigError) as caught:
        read_progress(folder, SCHEMA.load(DEFAULT))
    expected = "was saved with data.task=countdown, and this run has arithmetic: write data.task=countdown, or begin"
    assert str(caught.value) == f"{folder} {expected} without this checkpoint"


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
    check_batches(cfg, actor_ranks=1)
