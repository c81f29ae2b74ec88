"""Programs that the comparison runs: the embodiment example, Stable-Baselines3, and a single-file PPO."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..contestant import HERE, ROOT
from .tasks import TASKS, Settings

EXAMPLE: Final = ROOT / "examples" / "embodiment" / "train_embodied_agent.py"
REFERENCES: Final = HERE / "results" / "references"
OURS_TAG: Final = "rollout/return"
SB3_PYTHON: Final = HERE / ".peers" / "sb3" / "bin" / "python"


@dataclass(frozen=True)
class Trainer:
    """A program that trains on a task and leaves evaluation.json and TensorBoard's event files in a folder.

    Attributes:
        label: name in tables and plots.
        executable: first words of the command.
        words: function that returns the rest of the command, for settings and a folder.
        tag: scalar of the mean return of the last 20 training episodes.
    """

    label: str
    executable: Path
    words: Callable[[Settings, str], list[str]]
    tag: str = OURS_TAG

    def command(self, settings: Settings, folder: Path) -> list[str]:
        """Return the whole command.

        Raises:
            FileNotFoundError: the program's environment has not been created.
        """
        if not self.executable.exists():
            raise FileNotFoundError(
                f"{self.label}: there is no {self.executable}; 'Peers' in benches/README.md says how to make it"
            )
        return [str(self.executable), *self.words(settings, str(folder))]


def _example(label: str, *overrides: str) -> Trainer:
    """Command of the embodiment example, which trains its whole budget and evaluates once."""

    def words(settings: Settings, folder: str) -> list[str]:
        return [
            *(str(EXAMPLE), "--config", TASKS[settings.env]),
            *(f"runner.seed={settings.seed}", f"runner.max_epochs={settings.updates}"),
            *("runner.save_interval=0", "runner.eval.interval=0", "runner.eval.target_return=null"),
            *(f"runner.eval.episodes={len(settings.evaluation_seeds)}", f"runner.logger.log_path={folder}"),
            *overrides,
        ]

    return Trainer(label, Path(sys.executable).with_name("rlinf-launch"), words)


def _reference(label: str, script: str, *flags: str, executable: Path, tag: str = OURS_TAG) -> Trainer:
    def words(_: Settings, folder: str) -> list[str]:
        return [str(REFERENCES / script), folder, *flags]

    return Trainer(label, executable, words, tag)


TRAINERS: Final = {
    "sync": _example("rlinf_async, sync"),
    "async": _example("rlinf_async, async", "runner.mode=async"),
    "sb3": _reference("SB3, DummyVecEnv", "sb3.py", executable=SB3_PYTHON, tag="rollout/ep_rew_mean"),
    "sb3_subproc": _reference(
        "SB3, SubprocVecEnv", "sb3.py", "--subproc", executable=SB3_PYTHON, tag="rollout/ep_rew_mean"
    ),
    "single_file": _reference("single file", "single_file_ppo.py", executable=Path(sys.executable)),
}
"""Trainers by their names in flags and records."""
