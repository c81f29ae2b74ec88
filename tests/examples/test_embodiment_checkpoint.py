from __future__ import annotations

import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock, patch

import pytest
import torch
from common.checkpoint import load_checkpoint, load_policy, place_to_resume, save_checkpoint
from configuration import SCHEMA
from embodied_runner import EmbodiedRunner
from omegaconf import OmegaConf
from policy import GaussianPolicy

from rlinf_async.errors import ConfigError


def train_once(policy: GaussianPolicy, optimizer: torch.optim.Optimizer) -> None:
    observations = torch.linspace(-1, 1, 12).view(3, 4)
    optimizer.zero_grad()
    actions, _ = policy.act(observations)
    (actions.square().mean() + policy.state_value(observations).square().mean()).backward()
    optimizer.step()


def test_training_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    policy = GaussianPolicy(4, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    moments = torch.tensor(5.0).double(), torch.arange(4).double(), torch.full((4,), 2.0).double()
    policy.moments.merge(*moments)
    train_once(policy, optimizer)
    save_checkpoint(tmp_path, 1, {"policy": policy.state_dict(), "optimizer": optimizer.state_dict(), "step": 1})

    restored = load_checkpoint(tmp_path)
    again = GaussianPolicy(4, 2)
    optimizer_again = torch.optim.Adam(again.parameters(), lr=0.5)
    again.load_state_dict(restored["policy"])
    optimizer_again.load_state_dict(restored["optimizer"])
    assert restored["step"] == 1

    train_once(policy, optimizer)
    train_once(again, optimizer_again)
    for name, tensor in policy.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor, rtol=0, atol=0)


def test_the_latest_is_found_from_the_folder_the_log_path_and_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    first = save_checkpoint(folder, 9, {"step": 9})
    save_checkpoint(folder, 2, {"step": 2})  # a later run in the same place
    assert load_checkpoint(folder)["step"] == 2
    assert load_checkpoint(tmp_path)["step"] == 2
    assert load_checkpoint(first)["step"] == 9


def test_a_crash_while_writing_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 1, {"step": 1})

    def write_half(state: Any, file: Any) -> None:
        file.write(b"half of a che")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", write_half)
    for step in (1, 2):
        with pytest.raises(OSError, match="disk full"):
            save_checkpoint(tmp_path, step, {"step": step})
    assert load_checkpoint(tmp_path)["step"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.pt", "step_000001.pt"]


def test_no_checkpoint_is_an_error_that_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoints/latest\.pt"):
        load_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match=r"absent\.pt"):
        load_checkpoint(tmp_path / "absent.pt")


def resume(tmp_path: Path, saved: list[str], *overrides: str) -> str:
    """What a run with these overrides says of a checkpoint that one with the others has saved."""
    before = SCHEMA.load("hopper_ppo", saved)
    config = OmegaConf.to_yaml(OmegaConf.structured(before))
    save_checkpoint(tmp_path / "checkpoints", 4, {"step": 4, "samples": 1, "episodes": [], "config": config})
    now = SCHEMA.load("hopper_ppo", [f"runner.resume_dir={tmp_path}", *overrides])
    with pytest.raises(ConfigError) as caught:
        EmbodiedRunner._load(cast(EmbodiedRunner, SimpleNamespace(cfg=now)), tmp_path)
    return str(caught.value).removeprefix(f"{tmp_path}/checkpoints/latest.pt ")


def test_a_checkpoint_of_other_sizes_names_the_key_both_values_and_the_file(tmp_path: Path) -> None:
    assert resume(tmp_path, ["actor.model.hidden_sizes=[32,32]"], "actor.model.hidden_sizes=[64]") == (
        "was saved with actor.model.hidden_sizes=[32,32], and this run has [64]: "
        "write actor.model.hidden_sizes=[32,32], or begin without this checkpoint"
    )
    assert resume(tmp_path, ["env.id=Walker2d-v5"]) == (
        "was saved with env.id=Walker2d-v5, and this run has Hopper-v5: write env.id=Walker2d-v5, or begin without "
        "this checkpoint"
    )
    assert resume(tmp_path, ["env.total_num_envs=3"], "env.total_num_envs=5") == (
        "was saved with env.total_num_envs=3, and this run has 5: write env.total_num_envs=3, or begin without this "
        "checkpoint"
    )


def test_a_policy_of_another_size_is_refused_as_well(tmp_path: Path) -> None:
    saved = SCHEMA.load("hopper_ppo", ["actor.model.hidden_sizes=[8]"])
    path = save_checkpoint(tmp_path, 1, {"policy": {}, "config": OmegaConf.to_yaml(OmegaConf.structured(saved))})
    assert load_policy(path, saved, ("actor.model.hidden_sizes",)) == {}
    with pytest.raises(ConfigError, match=r"step_000001\.pt was saved with actor\.model\.hidden_sizes=\[8\], and this"):
        load_policy(path, SCHEMA.load("hopper_ppo"), ("actor.model.hidden_sizes",))


class Canary:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("a checkpoint ran code",))


def test_a_checkpoint_cannot_run_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save_checkpoint(tmp_path, 1, {"policy": Canary()})
    with pytest.raises(pickle.UnpicklingError):
        load_policy(path)
    assert capsys.readouterr().out == ""


def test_auto_is_the_own_log_path_once_it_has_a_checkpoint(tmp_path: Path) -> None:
    assert place_to_resume("auto", tmp_path) is None
    save_checkpoint(tmp_path / "checkpoints", 4, {"step": 4})
    assert place_to_resume("auto", tmp_path) == tmp_path
    assert place_to_resume("elsewhere", tmp_path) == "elsewhere"
    assert place_to_resume(None, tmp_path) is None


def test_a_name_that_a_killed_run_left_is_no_way_into_its_checkpoint(tmp_path: Path) -> None:
    saved = save_checkpoint(tmp_path, 4, {"step": 4})
    (tmp_path / f".{saved.name}.{os.getpid()}").hardlink_to(saved)

    def look(state: Any, file: Any) -> None:
        assert torch.load(saved)["step"] == 4
        file.write(b"new")

    with patch.object(torch, "save", look):
        save_checkpoint(tmp_path, 4, {"step": 4})
    assert saved.read_bytes() == b"new"


SIZES = ["env.total_num_envs=4", "rollout.pipeline_stage_num=1"]


class Actor:
    """A group of one rank that was started again."""

    given: Any = None

    def __len__(self) -> int:
        return 1

    def __getattr__(self, name: str) -> Any:
        return AsyncMock(return_value=[name != "is_ready"])

    def execute_on(self, *ranks: int) -> Actor:
        return self

    async def init_worker(self, *given: Any) -> None:
        self.given = given[-1]


@pytest.mark.parametrize("resumed", [False, True])
async def test_a_restarted_actor_goes_on_from_a_checkpoint_of_this_run_alone(tmp_path: Path, resumed: bool) -> None:
    state = {"samples": 1, "episodes": [], "simulators": []}
    for folder, step in (("earlier", 4), ("own", 9)):
        save_checkpoint(tmp_path / folder / "checkpoints", step, {"step": step, **state})
    resume = [f"runner.resume_dir={tmp_path}/earlier"] if resumed else []
    supervised = [f"runner.logger.log_path={tmp_path}/own", "cluster.supervision.actor.restart=group"]
    actor = Actor()
    cfg = SCHEMA.load("hopper_ppo", SIZES + supervised + resume)
    runner = EmbodiedRunner(cfg, cast(Any, actor), cast(Any, Actor()), None)
    with patch.multiple(runner, env=MagicMock(), actor=MagicMock()):
        runner.init_workers()
    runner._queues = cast(Any, AsyncMock())
    with patch.multiple(runner, _renew=AsyncMock(), _open_queues=AsyncMock()):
        await runner._recover(RuntimeError("it has no weights"))
    assert runner.step == (4 if resumed else 0)
    assert (actor.given and actor.given["step"]) == (4 if resumed else None)
