"""Countdown: an expression over given numbers whose value is a given target; no solution is ever shown.

``2,3,7=13:`` asks for 13 from 2, 3 and 7, each used once, with ``+``, ``-`` and ``*`` in the usual precedence:
``2*3+7`` is right.  Demonstrations are random expressions over the numbers, whatever the target: they teach the format
alone, and what hits is left to reinforcement.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class Countdown:
    """Problems of ``terms`` numbers from 1 to ``largest``, in ascending order, with a target that can be reached."""

    terms: int
    largest: int
    characters: ClassVar[str] = "0123456789+-*,=:"

    @property
    def longest_response(self) -> int:
        return self.terms * (len(str(self.largest)) + 1) - 1

    def draw(self, seed: Sequence[int]) -> Iterator[str]:
        generator = np.random.default_rng(seed)
        while True:
            drawn = np.sort(generator.integers(1, self.largest, size=self.terms, endpoint=True))
            numbers = [str(number) for number in drawn]
            target = _value(_random_expression(numbers, generator))
            if target >= 0:
                yield f"{','.join(numbers)}={target}:"

    def demonstrate(self, prompt: str, generator: np.random.Generator) -> str:
        """A random expression, whatever the target."""
        return _random_expression(_parse(prompt)[0], generator)

    def resembles_demonstration(self, prompt: str, response: str | None) -> bool:
        """Whether the response is an expression that uses every number once; hit or miss."""
        numbers, _ = _parse(prompt)
        # Numbers are compared as text: one of thousands of digits is none of the prompt's, and is never converted.
        is_expression = response is not None and re.fullmatch(r"[0-9]+([-+*][0-9]+)*", response)
        return bool(is_expression) and sorted(re.findall("[0-9]+", response or "")) == sorted(numbers)

    def is_correct(self, prompt: str, response: str | None) -> bool:
        """Whether the response uses every number once and has the target as its value."""
        return self.resembles_demonstration(prompt, response) and _value(response or "") == _parse(prompt)[1]


def _random_expression(numbers: Sequence[str], generator: np.random.Generator) -> str:
    order = generator.permutation(len(numbers)).tolist()
    operators = generator.choice(["+", "-", "*"], size=len(numbers) - 1).tolist()
    followers = zip(operators, order[1:], strict=True)
    return numbers[order[0]] + "".join(f"{operator}{numbers[index]}" for operator, index in followers)


def _value(expression: str) -> int:
    products = re.findall(r"([-+]?)([0-9]+(?:\*[0-9]+)*)", expression)
    return sum(int(f"{sign}1") * math.prod(map(int, product.split("*"))) for sign, product in products)


def _parse(prompt: str) -> tuple[list[str], int]:
    if not re.fullmatch(r"[0-9]+(,[0-9]+)+=[0-9]+:", prompt):
        raise ValueError(f"{prompt!r} is no countdown problem: numbers with commas between, =, a target, then :")
    numbers, target = prompt[:-1].split("=")
    return numbers.split(","), int(target)
