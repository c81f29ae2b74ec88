"""``Solver``: a model with its tokenizer that samples responses to problems, text in and text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from generation import Generated, generate
from tokenizer import CharacterTokenizer
from torch import Tensor


@dataclass(frozen=True)
class Solver:
    """Samples responses to problems.

    Attributes:
        max_new_tokens: limit of a response, its end included.
    """

    model: Any
    tokenizer: CharacterTokenizer
    max_new_tokens: int
    device: torch.device

    def prompts(self, problems: Sequence[str]) -> Tensor:
        """``[problems, length]`` ids, padded on the left, on the CPU."""
        return torch.tensor(self.tokenizer.pad_left(problems))

    def sample(
        self, prompts: Tensor, samples: int, temperature: float, generator: torch.Generator | None = None
    ) -> tuple[Generated, list[str | None]]:
        """``samples`` responses to each prompt, side by side, as tokens on the CPU and as texts.

        A text is None where the response has no end.  ``temperature`` 0 gives the most likely tokens.
        """
        generated = generate(
            self.model,
            prompts.to(self.device),
            samples=samples,
            max_new_tokens=self.max_new_tokens,
            temperature=temperature,
            pad_id=self.tokenizer.pad_id,
            end_id=self.tokenizer.end_id,
            generator=generator,
        )
        generated = Generated(generated.tokens.cpu(), generated.log_probabilities.cpu())
        return generated, [self._text(row) for row in generated.tokens.tolist()]

    def answer(self, problems: Sequence[str]) -> list[str | None]:
        """The most likely response to each problem."""
        if not problems:
            return []
        return self.sample(self.prompts(problems), samples=1, temperature=0.0)[1]

    def _text(self, row: list[int]) -> str | None:
        return self.tokenizer.decode(row) if self.tokenizer.end_id in row else None
