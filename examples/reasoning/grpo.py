"""The arithmetic of group relative policy optimisation: pure functions of tensors.

Shao et al., "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", arXiv 2402.03300,
section 4.1: several responses to each problem, whose mean reward takes the place of a value function.  ``mask`` is
always ``[responses, length]``, true at the tokens of a response; what stands elsewhere means nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor


def group_relative_advantages(rewards: Tensor, epsilon: float = 1e-4) -> Tensor:
    """How much better each response is than the others to the same problem, in standard deviations.

    Args:
        rewards: ``[problems, group]``.

    Returns:
        ``[problems, group]``; zero where all of a group are alike.
    """
    deviation = rewards - rewards.mean(dim=1, keepdim=True)
    return deviation / (rewards.std(dim=1, keepdim=True) + epsilon)


def mean_of_responses(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over each response's tokens, then over the responses: every response counts the same."""
    per_response = values.masked_fill(~mask, 0.0).sum(dim=1) / mask.sum(dim=1)
    return per_response.mean()


def clipped_policy_loss(
    log_probabilities: Tensor, old_log_probabilities: Tensor, advantages: Tensor, mask: Tensor, clip_ratio: float
) -> Tensor:
    """The negated clipped objective, equation 3 of arXiv 2402.03300 without its last term.

    Args:
        log_probabilities, old_log_probabilities: ``[responses, length]``, by the weights that learn and by those that
            sampled.
        advantages: ``[responses]``; every token of a response has its response's.
        clip_ratio: how far a token's probability can gain by moving.
    """
    ratio = torch.exp((log_probabilities - old_log_probabilities).masked_fill(~mask, 0.0))
    clipped = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    advantages = advantages[:, None]
    return -mean_of_responses(torch.minimum(ratio * advantages, clipped * advantages), mask)


def reference_kl(log_probabilities: Tensor, reference_log_probabilities: Tensor, mask: Tensor) -> Tensor:
    """An estimate of KL(policy || reference) from tokens of the policy, equation 4 of arXiv 2402.03300.

    ``ratio - 1 - log(ratio)`` of the reference to the policy: unbiased and never negative.
    """
    log_ratio = (reference_log_probabilities - log_probabilities).masked_fill(~mask, 0.0)
    return mean_of_responses(torch.expm1(log_ratio) - log_ratio, mask)


def clip_fraction(log_probabilities: Tensor, old_log_probabilities: Tensor, mask: Tensor, clip_ratio: float) -> Tensor:
    """The share of tokens whose probability ratio lies outside the clip range."""
    ratio = torch.exp((log_probabilities - old_log_probabilities).masked_fill(~mask, 0.0))
    return mean_of_responses(((ratio - 1.0).abs() > clip_ratio).float(), mask)
