"""Supervised warm start: imitates a task's demonstrations until enough responses resemble them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from common.data_parallel import DataParallel
from language_model import response_log_probabilities
from problem_sets import ProblemSets
from reasoning_config import Configuration
from solver import Solver
from task import Task

_LR_RISE = 50
"""Steps in which the learning rate rises to its full value."""


@dataclass(frozen=True)
class WarmStartReport:
    """``accuracy`` on the selection problems when the learning rate began to fall."""

    steps: int
    accuracy: float


class WarmStartFailed(RuntimeError):
    """The model has not reached the accuracy that reinforcement learning is to begin with."""


def warm_start(
    solver: Solver, task: Task, sets: ProblemSets, cfg: Configuration, ranks: DataParallel
) -> WarmStartReport:
    """Trains ``solver.model`` on demonstrations of training problems, the batches shared out among the ranks.

    When the accuracy on the selection problems (the share of responses that resemble demonstrations) reaches
    ``target_accuracy``, ``further_steps`` follow, then the learning rate falls to nothing in ``cool_down_steps``, and
    the warm start is over.

    Raises:
        WarmStartFailed: that did not happen within ``max_steps``.
    """
    options, model = cfg.actor.warm_start, solver.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.0)
    share = slice(ranks.rank, None, ranks.world_size)
    accuracy = 0.0

    def imitate(step: int) -> None:
        prompts, demonstrations = _draw(task, sets.training, cfg, step)
        _imitate(solver, prompts[share], demonstrations[share], optimizer, ranks)

    for step in range(options.max_steps):
        _set_lr(optimizer, options.lr * min(1.0, (step + 1) / _LR_RISE))
        imitate(step)
        if (step + 1) % options.check_interval:
            continue
        shared = torch.tensor(_accuracy(solver, task, sets.selection[share]), device=solver.device)
        accuracy = float(ranks.mean(shared))
        if accuracy >= options.target_accuracy:
            break
    else:
        raise WarmStartFailed(
            f"after {options.max_steps} steps the accuracy is {accuracy:.1%}, below {options.target_accuracy:.1%}: "
            "raise actor.warm_start.max_steps or lower actor.warm_start.target_accuracy"
        )
    for _ in range(options.further_steps):
        step += 1
        imitate(step)
    for cooling in range(options.cool_down_steps):
        _set_lr(optimizer, options.lr * (1.0 - cooling / options.cool_down_steps))
        imitate(step + 1 + cooling)
    return WarmStartReport(step + 1 + options.cool_down_steps, accuracy)


def _draw(task: Task, problems: Sequence[str], cfg: Configuration, step: int) -> tuple[list[str], list[str]]:
    """Prompts and demonstrations of a step, the same on every rank."""
    generator = np.random.default_rng([cfg.runner.seed, step])
    chosen = generator.integers(len(problems), size=cfg.actor.warm_start.batch_size)
    prompts = [problems[index] for index in chosen.tolist()]
    return prompts, [task.demonstrate(prompt, generator) for prompt in prompts]


def _imitate(
    solver: Solver,
    problems: Sequence[str],
    demonstrations: Sequence[str],
    optimizer: torch.optim.Optimizer,
    ranks: DataParallel,
) -> None:
    tokenizer, model = solver.tokenizer, solver.model
    solutions = torch.tensor(tokenizer.pad_right(demonstrations)).to(solver.device)
    prompts = solver.prompts(problems).to(solver.device)
    log_probabilities = response_log_probabilities(model, prompts, solutions, pad_id=tokenizer.pad_id)
    mask = solutions != tokenizer.pad_id
    optimizer.zero_grad(set_to_none=True)
    (-(log_probabilities * mask).sum() / mask.sum()).backward()
    ranks.average_gradients(model.parameters())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _accuracy(solver: Solver, task: Task, problems: Sequence[str]) -> float:
    answers = zip(problems, solver.answer(problems), strict=True)
    return sum(task.resembles_demonstration(problem, answer) for problem, answer in answers) / len(problems)


def _set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
