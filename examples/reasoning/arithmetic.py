"""Arithmetic: sums and differences, worked out from left to right.

A problem is a chain of terms, ``27+48-31=``.  Its worked solution writes down what is left to do after each step,
``75-31=44``: the last number is the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class Arithmetic:
    """Problems of ``terms`` terms, each from 1 to ``largest``, of which no step goes below zero."""

    terms: int
    largest: int
    characters: ClassVar[str] = "0123456789+-="

    @property
    def longest_response(self) -> int:
        """Characters in the longest worked solution: that of the largest terms, all added up."""
        return len(_solution([self.largest] * self.terms))

    def draw(self, seed: Sequence[int]) -> Iterator[str]:
        generator = np.random.default_rng(seed)
        while True:
            sizes = generator.integers(1, self.largest, size=(64, self.terms), endpoint=True)
            signs = generator.choice((-1, 1), size=(64, self.terms - 1))
            terms = np.concatenate([sizes[:, :1], sizes[:, 1:] * signs], axis=1)
            possible = terms[(terms.cumsum(axis=1) >= 0).all(axis=1)]
            yield from (_chain(row) + "=" for row in possible.tolist())

    def demonstrate(self, prompt: str, generator: np.random.Generator) -> str:
        """The worked solution, of which there is one."""
        return _solution(_parse(prompt))

    def resembles_demonstration(self, prompt: str, response: str | None) -> bool:
        return self.is_correct(prompt, response)

    def is_correct(self, prompt: str, response: str | None) -> bool:
        """Whether the last number of ``response`` answers ``prompt``.

        Only the result counts, not the way to it.  The number stands alone after the last ``=`` and as one would write
        it, without a plus or leading zeros: ``44``, not ``+44`` or ``044``.
        """
        expected = str(sum(_parse(prompt)))
        return response is not None and response.rpartition("=")[2] == expected


def _chain(terms: Sequence[int]) -> str:
    return str(terms[0]) + "".join(f"{term:+d}" for term in terms[1:])


def _solution(terms: Sequence[int]) -> str:
    ends = range(2, len(terms) + 1)
    return "=".join(_chain((sum(terms[:end]), *terms[end:])) for end in ends)


def _parse(prompt: str) -> list[int]:
    if not re.fullmatch(r"[0-9]+([-+][0-9]+)+=", prompt):
        raise ValueError(f"{prompt!r} is no arithmetic problem: numbers with + or - between them, then =")
    return [int(term) for term in re.findall(r"[-+]?[0-9]+", prompt)]
