"""Arithmetic problems, drawn from seeds; some of them are held out of training for good.

A problem is a chain of terms, ``27+48-31=``.  Its worked solution writes down what is left to do after each step,
``75-31=44``: the last number is the answer.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np

from rlinf_async.errors import ConfigError


@dataclass(frozen=True)
class Problem:
    """Numbers that are added up; those behind a minus are negative."""

    terms: tuple[int, ...]

    @property
    def prompt(self) -> str:
        return _chain(self.terms) + "="

    @property
    def answer(self) -> int:
        return sum(self.terms)

    @property
    def solution(self) -> str:
        """The worked solution: what should follow the prompt."""
        ends = range(2, len(self.terms) + 1)
        return "=".join(_chain((sum(self.terms[:end]), *self.terms[end:])) for end in ends)

    @classmethod
    def parse(cls, prompt: str) -> Problem:
        """The problem of a prompt.

        Raises:
            ValueError: this is none.
        """
        if not re.fullmatch(r"[0-9]+([-+][0-9]+)+=", prompt):
            raise ValueError(f"{prompt!r} is no arithmetic problem: numbers with + or - between them, then =")
        return cls(tuple(int(term) for term in re.findall(r"[-+]?[0-9]+", prompt)))


def _chain(terms: Sequence[int]) -> str:
    return str(terms[0]) + "".join(f"{term:+d}" for term in terms[1:])


@dataclass(frozen=True)
class ProblemSpace:
    """Problems of ``terms`` terms, each from 1 to ``largest``, of which no step goes below zero."""

    terms: int
    largest: int

    @property
    def longest_solution(self) -> int:
        """Characters in the longest worked solution: that of the largest terms, all added up."""
        return len(Problem((self.largest,) * self.terms).solution)

    def draw(self, seed: Sequence[int]) -> Iterator[Problem]:
        """Without end, the same for the same seed; one may come more than once."""
        generator = np.random.default_rng(seed)
        while True:
            sizes = generator.integers(1, self.largest, size=(64, self.terms), endpoint=True)
            signs = generator.choice((-1, 1), size=(64, self.terms - 1))
            terms = np.concatenate([sizes[:, :1], sizes[:, 1:] * signs], axis=1)
            possible = terms[(terms.cumsum(axis=1) >= 0).all(axis=1)]
            yield from (Problem(tuple(row)) for row in possible.tolist())


@dataclass(frozen=True)
class ProblemSets:
    """Three sets that do not meet, each problem once.

    Attributes:
        held_out: for evaluation; nothing that is trained or decided sees them.
        selection: they decide when the warm start is over.
        training: to learn from; those of another seed are others, while the first two sets are always the same.
    """

    held_out: list[Problem]
    selection: list[Problem]
    training: list[Problem]

    @classmethod
    def draw(cls, space: ProblemSpace, held_out: int, selection: int, training: int, seed: int) -> ProblemSets:
        """Sets of these sizes; ``seed`` is that of the training problems.

        Raises:
            ConfigError: the space has too few problems.
        """
        apart = _distinct(space, held_out + selection, [0], frozenset())
        taught = _distinct(space, training, [1, seed], frozenset(apart))
        return cls(apart[:held_out], apart[held_out:], taught)


def _distinct(space: ProblemSpace, count: int, seed: Sequence[int], without: Set[Problem]) -> list[Problem]:
    # So many draws find nearly all of a space that has twice as many problems.
    drawn = dict.fromkeys(itertools.islice(space.draw(seed), 20 * count + 1000))
    allowed = [problem for problem in drawn if problem not in without]
    if len(allowed) < count:
        raise ConfigError(
            f"data: there are too few problems of {space.terms} terms up to {space.largest} for {count} and "
            f"{len(without)} others: raise data.terms or data.largest, or lower the sizes of the sets"
        )
    return allowed[:count]
