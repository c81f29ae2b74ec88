"""Data sets of a task that is generated from seeds: to train on, to evaluate on, and demonstrations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
from arithmetic import Arithmetic
from countdown import Countdown
from reasoning_config import Configuration, Data
from rows import Row, write_rows

from rlinf_async.errors import ConfigError

CHARACTERS = "0123456789+-*=,:"
"""Characters of the generated tasks: the tiny model has a token for each."""

_DEMONSTRATIONS_PER_PROBLEM = 8


def generate_data(cfg: Configuration, folder: Path) -> None:
    """Write ``train.jsonl``, ``eval.jsonl`` and ``demonstrations.jsonl``, the same for the same configuration.

    No problem of one of the first two sets is in the other, and ``eval.jsonl`` is the same for all seeds.
    Demonstrations are conversations about problems to train on; the last message of each is the assistant's.
    """
    data, seed = cfg.data, cfg.runner.seed
    task = (Countdown if data.task == "countdown" else Arithmetic)(data.terms, data.largest)
    held_out = _distinct(task, data, data.held_out_size, [0], frozenset())
    training = _distinct(task, data, data.train_size, [1, seed], held_out.keys())
    if cfg.actor.model.model_path is None and (strange := set("".join(training)) - set(CHARACTERS)):
        raise ConfigError(
            f"data.prompt: the model that is made here has no token for {min(strange)!r}, only for {CHARACTERS}: leave "
            "the prompt as it is, or give a model of your own, actor.model.model_path"
        )
    write_rows(folder / "eval.jsonl", (Row(_chat(prompt), meta) for prompt, meta in held_out.items()))
    write_rows(folder / "train.jsonl", (Row(_chat(prompt), meta) for prompt, meta in training.items()))
    generator = np.random.default_rng([2, seed])
    taught = (
        Row([*_chat(prompt), {"role": "assistant", "content": task.demonstrate(meta, generator)}])
        for _ in range(_DEMONSTRATIONS_PER_PROBLEM)
        for prompt, meta in training.items()
    )
    write_rows(folder / "demonstrations.jsonl", taught)


def _chat(prompt: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}]


def _distinct(
    task: Arithmetic | Countdown, data: Data, count: int, seed: Sequence[int], without: Set[str]
) -> dict[str, dict[str, Any]]:
    # Return so many problems by their prompts.
    template, found = data.prompt or task.prompt, dict[str, dict[str, Any]]()
    # So many draws find nearly all of a space that has twice as many problems.
    for meta in itertools.islice(task.draw(seed), 20 * count + 1000):
        try:
            prompt = template.format(**task.words(meta))
        except (KeyError, IndexError, ValueError) as error:
            fields = " and ".join(f"{{{name}}}" for name in task.words(meta))
            raise ConfigError(f"data.prompt: {template!r} cannot be filled in ({error!r}): use {fields}") from error
        if prompt not in without:
            found[prompt] = meta
        if len(found) == count:
            return found
    raise ConfigError(
        f"data: there are too few problems of {task} for {count} and {len(without)} others: raise data.terms or "
        "data.largest, or lower data.train_size or data.held_out_size"
    )
