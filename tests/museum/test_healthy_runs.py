"""Healthy runs that wait long and in every way: ``rlinf-ctl stuck``, asked every second, never says that one hangs.

Programs of ``healthy`` and examples, more than fifty runs in all (``make museum-healthy``).
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests._support.inspected_runs import InspectedRun

pytestmark = pytest.mark.shared_cluster

HEALTHY = Path(__file__).parent / "healthy"
EXAMPLES = Path(__file__).parents[2] / "examples"
INTERVAL_S = 1.0
TIMEOUT_S = 400

NO_RUN = 3
"""Exit code of ``rlinf-ctl`` where there is no run: none yet, or none any more."""


def answers_of(run: InspectedRun) -> list[subprocess.CompletedProcess[str]]:
    """What ``stuck`` says every second until the run has ended, and once more."""
    answers: list[subprocess.CompletedProcess[str]] = []
    deadline = time.monotonic() + TIMEOUT_S
    following = time.monotonic()
    while run.process.poll() is None:
        assert time.monotonic() < deadline, f"has not ended within {TIMEOUT_S} s:\n{run.output}"
        answers.append(run.ask("stuck"))
        following = max(following + INTERVAL_S, time.monotonic())
        while run.process.poll() is None and time.monotonic() < following:
            time.sleep(0.05)
    return [*answers, run.ask("stuck")]


def check(program: Path, *arguments: str, at_least: int, flags: tuple[str, ...] = ()) -> None:
    """Runs the program, and holds all answers to what it is: a run that goes on, and that comes to its end.

    Args:
        at_least: answers that there have to be while it runs.
        flags: of ``rlinf-launch``.
    """
    with InspectedRun(program, *arguments, flags=flags) as run:
        answers = answers_of(run)
        assert run.process.returncode == 0, run.output
        assert run.end() == []
        wrong = [answer for answer in answers if answer.returncode not in (0, NO_RUN)]
        assert not wrong, f"{wrong[0].stdout}{wrong[0].stderr}\nafter:\n{run.output}"
        codes = [answer.returncode for answer in answers]
        print(f"{program.stem} {arguments[:1]}:", dict(Counter(each.stdout.partition(":")[0] for each in answers)))
        assert answers[-1].returncode == NO_RUN, answers[-1].stdout
        assert codes.count(0) >= at_least, codes


def test_a_training_loop_is_no_hang() -> None:
    check(HEALTHY / "training_loop.py", "4", at_least=1)


@dataclass(frozen=True)
class Healthy:
    """A run that goes on, however it looks.

    Attributes:
        at_least: answers that there have to be while it runs.
        flags: of ``rlinf-launch``.
    """

    program: str
    arguments: tuple[str, ...] = ()
    at_least: int = 1
    flags: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join((self.program, *self.arguments[:1]))


LATE_HELPERS = ("engine", "producer", "condition", "grpc", "condition_of_threads")
OUTSIDE = (
    *(
        "subprocess",
        "stream",
        "executor",
        "sleeping_executor",
        "signal",
        "call_later",
        "watched_file",
        "command",
        "pool",
    ),
    *("futures", "queue_of_processes", "event_of_processes", "native_thread", "timer_thread", "file_lock"),
    *("loop_in_a_thread", "data_loader"),
)
RUNS = (
    Healthy("held_gil", ("60",), 5),
    Healthy("held_gil", ("5",)),
    *(Healthy("training_loop", (seconds,), 2) for seconds in ("10", "20", "30")),
    *(Healthy("one_at_a_time", (seconds,), 3) for seconds in ("2", "5")),
    Healthy("slow_driver", at_least=4),
    Healthy("blocked_loops", at_least=8),
    Healthy("idle_service", at_least=4),
    Healthy("late_names", at_least=3),
    Healthy("away_rank", at_least=5),
    Healthy("deadlines", at_least=6),
    Healthy("slow_streams", at_least=5, flags=("--fake-gpus", "2")),
    Healthy("slow_streams", at_least=5, flags=("--fake-gpus", "2", "--local-nodes", "2")),
    *(Healthy("late_helpers", (kind,), 2) for kind in LATE_HELPERS),
    *(Healthy("outside_waits", (kind,), 3) for kind in OUTSIDE),
)
EMBODIMENT = (
    *("env.total_num_envs=4", "algorithm.rollout_steps=16", "algorithm.update_epochs=2", "algorithm.target_kl=null"),
    *("actor.global_batch_size=32", "actor.micro_batch_size=8", "runner.eval.episodes=3", "runner.eval.interval=0"),
)
REASONING = (
    *("data.train_size=64", "data.rollout_batch_size=8", "data.held_out_size=33", "data.selection_size=16"),
    *("rollout.batch_size=2", "algorithm.group_size=4", "actor.global_batch_size=16", "actor.micro_batch_size=4"),
    *("actor.model.hidden_size=16", "actor.warm_start.target_accuracy=0", "actor.warm_start.batch_size=64"),
    *("actor.warm_start.cool_down_steps=2", "runner.eval_interval=0"),
)
"""As small as in ``tests/examples``."""


@pytest.mark.museum
@pytest.mark.healthy
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_a_program_that_waits_for_long_is_no_hang(run: Healthy) -> None:
    check(HEALTHY / f"{run.program}.py", *run.arguments, at_least=run.at_least, flags=run.flags)


@pytest.mark.museum
@pytest.mark.healthy
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_the_smallest_example_is_no_hang(nodes: int) -> None:
    check(EXAMPLES / "hello.py", at_least=0, flags=("--local-nodes", str(nodes)))


@pytest.mark.museum
@pytest.mark.healthy
@pytest.mark.parametrize("seed", range(1, 9))
def test_a_training_run_of_embodiment_is_no_hang(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    script = EXAMPLES / "embodiment" / "train_embodied_agent.py"
    places = (f"runner.seed={seed}", f"runner.max_steps={seed}", f"runner.logger.log_path={tmp_path / 'run'}")
    check(script, *EMBODIMENT, *places, at_least=1)


@pytest.mark.museum
@pytest.mark.healthy
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("config", ["two_terms_disaggregated", "two_terms_collocated"])
def test_a_training_run_of_reasoning_is_no_hang(config: str, steps: int, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    script = EXAMPLES / "reasoning" / "main_grpo.py"
    places = ("cluster.fake_gpus=null", f"runner.max_steps={steps}", f"runner.logger.log_path={tmp_path / 'run'}")
    check(script, "--config", config, *REASONING, *places, at_least=1, flags=("--fake-gpus", "2"))
