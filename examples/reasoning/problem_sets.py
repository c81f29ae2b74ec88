"""Problems drawn from seeds; some of them are held out of training for good."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass

from task import Task

from rlinf_async.errors import ConfigError


@dataclass(frozen=True)
class ProblemSets:
    """Three sets of prompts that do not meet, each prompt once.

    Attributes:
        held_out: for evaluation; nothing that is trained or decided sees them.
        selection: they decide when the warm start is over.
        training: to learn from; those of another seed are others, while the first two sets are always the same.
    """

    held_out: list[str]
    selection: list[str]
    training: list[str]

    @classmethod
    def draw(cls, task: Task, held_out: int, selection: int, training: int, seed: int) -> ProblemSets:
        """Sets of these sizes; ``seed`` is that of the training problems.

        Raises:
            ConfigError: the task has too few problems.
        """
        apart = _distinct(task, held_out + selection, [0], frozenset())
        taught = _distinct(task, training, [1, seed], frozenset(apart))
        return cls(apart[:held_out], apart[held_out:], taught)


def _distinct(task: Task, count: int, seed: Sequence[int], without: Set[str]) -> list[str]:
    found: dict[str, None] = {}
    # So many draws find nearly all of a space that has twice as many problems.
    for prompt in itertools.islice(task.draw(seed), 20 * count + 1000):
        if prompt not in without:
            found[prompt] = None
        if len(found) == count:
            return list(found)
    raise ConfigError(
        f"data: there are too few problems of {task} for {count} and {len(without)} others: raise data.terms or "
        "data.largest, or lower the sizes of the sets"
    )
