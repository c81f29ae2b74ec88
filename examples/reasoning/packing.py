"""Packed sequences: prompts with their responses, one behind the other in a single row without padding.

Positions begin anew with each sequence.  transformers takes the boundaries from them, for every attention that it has:
a block-causal mask for SDPA and flex attention, lengths for flash attention.  No token sees another sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Pack:
    """Sequences of one forward pass.

    Attributes:
        ids, positions: ``[1, tokens]``.
        predicting: indices of the tokens behind each of which a token of a response comes.
        targets: the tokens of the responses, one behind the other.
        lengths: of the responses.
    """

    ids: Tensor
    positions: Tensor
    predicting: Tensor
    targets: Tensor
    lengths: list[int]


def pack(sequences: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device | str = "cpu") -> Pack:
    """Pack prompts with their responses; each has at least one token."""
    ids, positions, predicting, targets = list[int](), list[int](), list[int](), list[int]()
    for prompt, response in sequences:
        first = len(ids) + len(prompt) - 1
        predicting += range(first, first + len(response))
        positions += range(len(prompt) + len(response))
        ids += [*prompt, *response]
        targets += response
    tensors = [torch.tensor(values, device=device) for values in ([ids], [positions], predicting, targets)]
    return Pack(*tensors, lengths=[len(response) for _, response in sequences])


def response_log_probs(model: Any, pack: Pack) -> Tensor:
    """Return the log probability of each token of the responses, ``[responses, longest]`` in float32; 0 behind the end.

    Logits are computed only where a token of a response is predicted.
    """
    output = model(input_ids=pack.ids, position_ids=pack.positions, use_cache=False, logits_to_keep=pack.predicting)
    log_probs = -cross_entropy(output.logits[0].float(), pack.targets, reduction="none")
    return pad_sequence(list(log_probs.split(pack.lengths)), batch_first=True)


def response_mask(lengths: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Return a mask ``[responses, longest]``, true at the tokens of each response."""
    return torch.arange(max(lengths), device=device) < torch.tensor(lengths, device=device)[:, None]


def divide(lengths: Sequence[int], limit: int, at_least: int = 1) -> list[list[int]]:
    """Divide sequences among passes of about the same size, none longer than ``limit`` unless by a single sequence.

    Args:
        lengths: tokens of each sequence.
        at_least: number of passes, up to one for each sequence.

    Returns:
        The indices of each pass, in ascending order.
    """
    longest_first = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for count in range(min(at_least, len(lengths)), len(lengths) + 1):
        passes, loads = [list[int]() for _ in range(count)], [0] * count
        for index in longest_first:
            lightest = loads.index(min(loads))
            passes[lightest].append(index)
            loads[lightest] += lengths[index]
        if max(loads) <= limit:
            break
    return [sorted(each) for each in passes]
