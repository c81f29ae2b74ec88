"""Batched sampling with a key-value cache."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from language_model import positions_of, token_log_probabilities
from torch import Tensor


@dataclass(frozen=True)
class Generated:
    """Tokens that a model wrote after prompts, ``[prompts * samples, ...]``, the samples of a prompt side by side.

    Attributes:
        tokens: ``[..., length]`` ids through the end, then padding.
        log_probabilities: ``[..., length]`` of each token as it was drawn; 0 at padding.
    """

    tokens: Tensor
    log_probabilities: Tensor


@torch.no_grad()
def generate(
    model: Any,
    prompts: Tensor,
    *,
    samples: int,
    max_new_tokens: int,
    temperature: float,
    pad_id: int,
    end_id: int,
    generator: torch.Generator | None = None,
) -> Generated:
    """Continues every prompt ``samples`` times, until all are at their end or ``max_new_tokens`` long.

    Prompts are read once, whatever the number of samples.

    Args:
        prompts: ``[prompts, length]`` ids, padded on the left.
        temperature: divides the logits; 0 takes the most likely token, and needs no generator.
    """
    from transformers import DynamicCache  # takes seconds: left to the workers that have a model

    mask = prompts != pad_id
    cache = DynamicCache()
    cached = {_cache_argument(model): cache, "use_cache": True}
    read = model(
        input_ids=prompts,
        attention_mask=mask,
        position_ids=positions_of(mask),
        logits_to_keep=1,
        **cached,
    )
    cache.batch_repeat_interleave(samples)
    logits = read.logits[:, -1].repeat_interleave(samples, dim=0)
    mask = mask.repeat_interleave(samples, dim=0)
    positions = mask.sum(dim=1)
    tokens: list[Tensor] = []
    log_probabilities: list[Tensor] = []
    ended = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    while True:
        scores = token_log_probabilities(logits, temperature or 1.0, pad_id)
        if temperature:
            token = torch.multinomial(scores.exp(), 1, generator=generator)
        else:
            token = scores.argmax(dim=-1, keepdim=True)
        log_probabilities.append(scores.gather(1, token)[:, 0].masked_fill(ended, 0.0))
        tokens.append(token[:, 0].masked_fill(ended, pad_id))
        ended = ended | (tokens[-1] == end_id)
        if len(tokens) == max_new_tokens or bool(ended.all()):
            return Generated(torch.stack(tokens, dim=1), torch.stack(log_probabilities, dim=1))
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        step = model(input_ids=token, attention_mask=mask, position_ids=positions[:, None], **cached)
        logits = step.logits[:, -1]
        positions = positions + 1


def _cache_argument(model: Any) -> str:
    """Name of the cache in ``forward``: ``cache`` from transformers 5.24 on."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
