"""``Task``: a space of problems with a verifier, and demonstrations for the warm start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from arithmetic import Arithmetic
from countdown import Countdown
from reasoning_config import Data


class Task(Protocol):
    """Problems that a verifier can judge.  A problem is its prompt, nothing else.

    Attributes:
        characters: of prompts and responses, a token for each.
    """

    characters: str

    @property
    def longest_response(self) -> int:
        """Characters in the longest response that a demonstration can have."""

    def draw(self, seed: Sequence[int]) -> Iterator[str]:
        """Prompts without end, the same for the same seed; one may come more than once."""

    def demonstrate(self, prompt: str, generator: np.random.Generator) -> str:
        """A response for the warm start to imitate."""

    def resembles_demonstration(self, prompt: str, response: str | None) -> bool:
        """Whether the response is what imitation can teach: the warm start ends when enough of them are."""

    def is_correct(self, prompt: str, response: str | None) -> bool:
        """The verdict on a response; None is one that never came to an end.

        Raises:
            ValueError: the prompt is none of this task.
        """


def make_task(data: Data) -> Task:
    """The task of the section ``data`` of a configuration."""
    if data.task == "countdown":
        return Countdown(data.terms, data.largest)
    return Arithmetic(data.terms, data.largest)
