"""A trainer whose weights engines follow: it adds noise on request, and says what it has."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rlinf_async import Worker, publish


class NoiseTrainer(Worker):
    """Publishes a model of Hugging Face's, which changes by noise."""

    def __init__(self, path: str, to: str | Sequence[str] = "llm", verify: str = "off") -> None:
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(path)
        self.weights: Any = publish(self.model, to=to, verify=verify)

    async def update(self, scale: float = 0.02) -> int:
        """Change every parameter, send the result, and return its version."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(scale * torch.randn_like(parameter))
        return int(await self.weights.send())

    async def delivered(self) -> int:
        """Wait until every follower has the last version, and return it."""
        return int((await self.weights.delivered()).version)

    def greedy(self, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
        """Return the likeliest tokens behind a prompt and their log probabilities, by a forward pass for each."""
        tokens: list[int] = []
        log_probs: list[float] = []
        with torch.no_grad():
            for _ in range(count):
                scores = self.model(torch.tensor([prompt + tokens])).logits[0, -1].log_softmax(-1)
                tokens.append(int(scores.argmax()))
                log_probs.append(float(scores.max()))
        return tokens, log_probs

    def digests(self) -> dict[str, str]:
        return {name: _sha256(tensor) for name, tensor in self.model.state_dict().items()}

    def log_probs(self, tokens: list[int], count: int) -> list[float]:
        """Return the log probability of each of the last ``count`` tokens, by a forward pass of the whole."""
        with torch.no_grad():
            logits = self.model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        first = len(tokens) - count
        return [float(logits[position - 1, tokens[position]]) for position in range(first, len(tokens))]


def _sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().flatten().view(torch.uint8).numpy()).hexdigest()
