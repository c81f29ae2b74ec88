"""The arithmetic of group relative policy optimisation: pure functions of tensors.

Shao et al., "DeepSeekMath", arXiv 2402.03300, section 4.1: the mean reward of several responses to a problem takes the
place of a value function.  ``mask`` is always ``[responses, length]``, true at the tokens of a response; other values
count for nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def group_relative_advantages(rewards: Tensor, *, divide_by_std: bool = True, epsilon: float = 1e-4) -> Tensor:
    """Advantages: how much better each response is than the others to the same problem.

    Args:
        rewards: ``[problems, group]``.
        divide_by_std: in standard deviations of the group, as in GRPO; else in rewards, which does not favour problems
            that are nearly always or nearly never solved (Dr. GRPO, arXiv 2503.20783).

    Returns:
        ``[problems, group]``; zero where all of a group are alike.
    """
    deviation = rewards - rewards.mean(dim=1, keepdim=True)
    return deviation / (rewards.std(dim=1, keepdim=True) + epsilon) if divide_by_std else deviation


def token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over all tokens: a long response counts more (DAPO, arXiv 2503.14476, equation 8)."""
    return values.masked_fill(~mask, 0.0).sum() / mask.sum()


def seq_mean_token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over each response's tokens, then over the responses: every response counts the same (GRPO)."""
    per_response = values.masked_fill(~mask, 0.0).sum(dim=1) / mask.sum(dim=1)
    return per_response.mean()


def seq_mean_token_sum(values: Tensor, mask: Tensor) -> Tensor:
    """The sum over each response's tokens, and the mean over the responses (Dr. GRPO, but for a constant)."""
    return values.masked_fill(~mask, 0.0).sum(dim=1).mean()


LOSS_AGGREGATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "token-mean": token_mean,
    "seq-mean-token-mean": seq_mean_token_mean,
    "seq-mean-token-sum": seq_mean_token_sum,
}


def clipped_policy_loss(
    log_probabilities: Tensor,
    old_log_probabilities: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_ratio_low: float,
    clip_ratio_high: float,
) -> Tensor:
    """The negated clipped objective of each token, equation 3 of arXiv 2402.03300 without its last term.

    A ``clip_ratio_high`` above ``clip_ratio_low`` leaves unlikely tokens more room to rise: arXiv 2503.14476, 3.1.

    Args:
        log_probabilities, old_log_probabilities: ``[responses, length]``, by the weights that learn and by those that
            sampled.
        advantages: ``[responses, length]``, or ``[responses, 1]`` where every token has its response's.

    Returns:
        ``[responses, length]``, 1 times the negated advantage where ``mask`` is false.
    """
    ratio = torch.exp((log_probabilities - old_log_probabilities).masked_fill(~mask, 0.0))
    clipped = ratio.clamp(1.0 - clip_ratio_low, 1.0 + clip_ratio_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def clipped_tokens(
    log_probabilities: Tensor,
    old_log_probabilities: Tensor,
    mask: Tensor,
    clip_ratio_low: float,
    clip_ratio_high: float,
) -> Tensor:
    """``[responses, length]``: 1 at tokens whose probability ratio lies outside the clip range."""
    ratio = torch.exp((log_probabilities - old_log_probabilities).masked_fill(~mask, 0.0))
    return ((ratio < 1.0 - clip_ratio_low) | (ratio > 1.0 + clip_ratio_high)).float()


def truncated_importance_weights(proximal: Tensor, sampled: Tensor, mask: Tensor, clip: float) -> Tensor:
    """``min(pi_trainer / pi_sampler, clip)`` of each token, which corrects for a sampler with other weights.

    Args:
        proximal, sampled: ``[responses, length]`` log probabilities by the trainer before it learns, and as sampled.
        clip: bounds the weight, and with it the variance.
    """
    return torch.exp((proximal - sampled).masked_fill(~mask, 0.0)).clamp(max=clip)


def kl_penalty(log_probabilities: Tensor, reference_log_probabilities: Tensor, mask: Tensor, kind: str) -> Tensor:
    """An estimate of KL(policy || reference) at each token of the policy.

    Schulman, "Approximating KL divergence", 2020: with r the probability ratio of the reference to the policy, ``k1``
    is -log r, ``k2`` half its square, ``k3`` (``low_var_kl``, equation 4 of arXiv 2402.03300) r - 1 - log r; ``abs``
    is the magnitude of ``k1``.

    Returns:
        ``[responses, length]``, 0 where ``mask`` is false.
    """
    return KL_ESTIMATORS[kind]((reference_log_probabilities - log_probabilities).masked_fill(~mask, 0.0))


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda log_ratio: -log_ratio,
    "k2": lambda log_ratio: 0.5 * log_ratio.square(),
    "k3": lambda log_ratio: torch.expm1(log_ratio) - log_ratio,
    "low_var_kl": lambda log_ratio: torch.expm1(log_ratio) - log_ratio,
    "abs": torch.abs,
}
