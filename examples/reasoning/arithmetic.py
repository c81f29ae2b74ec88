"""Arithmetic: sums and differences, worked out from left to right.

A problem is a chain of terms, ``27+48-31=``.  Its worked solution writes down the rest of the chain after each step,
``75-31=44``: the last number is the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class Arithmetic:
    """Problems of ``terms`` terms, each from 1 to ``largest``, of which no step goes below zero."""

    terms: int
    largest: int
    prompt: ClassVar[str] = "{problem}="

    def draw(self, seed: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield the ``meta`` of problems without end, the same for the same seed; a problem may come twice."""
        generator = np.random.default_rng(seed)
        while True:
            terms = generator.integers(1, self.largest, size=self.terms, endpoint=True)
            terms[1:] *= generator.choice((-1, 1), size=self.terms - 1)
            if (terms.cumsum() >= 0).all():
                yield {"terms": terms.tolist()}

    def words(self, meta: dict[str, Any]) -> dict[str, str]:
        """Return the fields of a prompt's template."""
        return {"problem": _chain(meta["terms"])}

    def demonstrate(self, meta: dict[str, Any], generator: np.random.Generator) -> str:
        """Return the worked solution, of which there is one."""
        terms = meta["terms"]
        return "=".join(_chain((sum(terms[:end]), *terms[end:])) for end in range(2, len(terms) + 1))


def reward(prompt: Any, text: str, meta: dict[str, Any]) -> float:
    """Return 1 if the last number of a response is the answer, else 0.

    Only the result counts, not the way to it.  The number stands alone after the last ``=`` and as one would write it,
    without a plus or leading zeros: ``44``, not ``+44`` or ``044``.
    """
    return float(text.rpartition("=")[2].strip() == str(sum(meta["terms"])))


def _chain(terms: Sequence[int]) -> str:
    return str(terms[0]) + "".join(f"{term:+d}" for term in terms[1:])
