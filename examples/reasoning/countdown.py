"""Countdown: an expression over given numbers whose value is a given target; no solution is ever shown.

13 from 2, 3 and 7, each used once, with ``+``, ``-`` and ``*`` in the usual precedence: ``2*3+7`` is right.
Demonstrations are random expressions over the numbers, whatever the target: they teach the format alone, and
reinforcement has to find the expressions that hit it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class Countdown:
    """Problems of ``terms`` numbers from 1 to ``largest``, in ascending order, with a target that can be reached."""

    terms: int
    largest: int
    prompt: ClassVar[str] = "{numbers}={target}:"

    def draw(self, seed: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield the ``meta`` of problems without end, the same for the same seed; a problem may come twice."""
        generator = np.random.default_rng(seed)
        while True:
            numbers = np.sort(generator.integers(1, self.largest, size=self.terms, endpoint=True)).tolist()
            target = _value(_random_expression(numbers, generator))
            if target >= 0:
                yield {"numbers": numbers, "target": target}

    def words(self, meta: dict[str, Any]) -> dict[str, str]:
        """Return the fields of a prompt's template."""
        return {"numbers": ",".join(map(str, meta["numbers"])), "target": str(meta["target"])}

    def demonstrate(self, meta: dict[str, Any], generator: np.random.Generator) -> str:
        return _random_expression(meta["numbers"], generator)


def reward(prompt: Any, text: str, meta: dict[str, Any]) -> float:
    """Return 1 for an expression that uses every number once and has the target as its value, else 0."""
    expression = text.replace(" ", "").strip()
    if not re.fullmatch(r"[0-9]+([-+*][0-9]+)*", expression):
        return 0.0
    # Numbers are compared as text: a number of thousands of digits is none of the problem's, and is never converted.
    if sorted(re.findall("[0-9]+", expression)) != sorted(map(str, meta["numbers"])):
        return 0.0
    return float(_value(expression) == meta["target"])


def _random_expression(numbers: Sequence[int], generator: np.random.Generator) -> str:
    order = generator.permutation(len(numbers)).tolist()
    operators = generator.choice(["+", "-", "*"], size=len(numbers) - 1).tolist()
    followers = zip(operators, order[1:], strict=True)
    return str(numbers[order[0]]) + "".join(f"{operator}{numbers[index]}" for operator, index in followers)


def _value(expression: str) -> int:
    products = re.findall(r"([-+]?)([0-9]+(?:\*[0-9]+)*)", expression)
    return sum(int(f"{sign}1") * math.prod(map(int, product.split("*"))) for sign, product in products)
