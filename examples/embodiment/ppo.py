"""The arithmetic of proximal policy optimisation: pure functions of tensors.

Generalised advantage estimation is Schulman et al., "High-Dimensional Continuous Control Using Generalized
Advantage Estimation", arXiv 1506.02438; the clipped objective is Schulman et al., "Proximal Policy
Optimization Algorithms", arXiv 1707.06347.
"""

from __future__ import annotations

import torch
from torch import Tensor


def generalized_advantage_estimation(
    *,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    ended: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Advantages of ``steps`` consecutive transitions in each of ``envs`` simulators.

    Equation 16 of arXiv 1506.02438: the sum over l of ``(gamma * lambda)^l * delta[t+l]``, where
    ``delta[t] = reward[t] + gamma * V(s[t+1]) - V(s[t])`` is the one-step error of the value function.

    Two ends of an episode are told apart.  A *terminated* one has no future: the value of its successor
    counts as zero.  One that a time limit cut has a future nobody looked at: its successor keeps its value.
    Neither lets the sum run on into the next episode.

    Args:
        rewards: ``[steps, envs]``.
        values: ``[steps, envs]``, V of the state that each step began in.
        next_values: ``[steps, envs]``, V of the state that each step led to, before any reset.
        terminated: ``[steps, envs]`` bool, the task itself ended here.
        ended: ``[steps, envs]`` bool, the episode ended here for either reason.

    Returns:
        ``[steps, envs]``.  Adding ``values`` gives the lambda-returns that the value function learns from.
    """
    delta = rewards + gamma * next_values * (~terminated) - values
    decay = gamma * gae_lambda * (~ended)
    advantages = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for step in reversed(range(delta.shape[0])):
        following = delta[step] + decay[step] * following
        advantages[step] = following
    return advantages


def clipped_policy_loss(
    log_probabilities: Tensor, old_log_probabilities: Tensor, advantages: Tensor, clip_ratio: float
) -> Tensor:
    """The negated clipped objective, equation 7 of arXiv 1707.06347, averaged over ``[batch]``.

    A step that would move the probability of an action by more than ``clip_ratio`` in the direction that
    its advantage asks for gains nothing; a step back always counts.
    """
    ratio = torch.exp(log_probabilities - old_log_probabilities)
    clipped = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    return -torch.minimum(ratio * advantages, clipped * advantages).mean()


def truncated_importance_weights(log_probabilities: Tensor, acted_by: Tensor, cap: float) -> Tensor:
    """The weights of actions that older weights took: the ratio of both probabilities, at most ``cap``.

    With them the clipped objective is decoupled: it is clipped around the policy that learns, and corrected for the one
    that acted (Hilton et al., "Batch Size-Invariance for Policy Optimization", arXiv 2110.00641, equation 3).  Large
    ratios are cut as in Espeholt et al., "IMPALA", arXiv 1802.01561.

    Args:
        log_probabilities, acted_by: ``[...]``, by the policy before it learns, and by the one that acted.
    """
    return torch.exp(log_probabilities - acted_by).clamp(max=cap)


def value_loss(values: Tensor, returns: Tensor) -> Tensor:
    """Half the mean squared error over ``[batch]``."""
    return 0.5 * (values - returns).square().mean()


def approximate_kl(log_probabilities: Tensor, old_log_probabilities: Tensor) -> Tensor:
    """How far the policy has moved: an estimate of KL(old || new) from actions of the old one, ``[batch]`` → scalar.

    ``ratio - 1 - log(ratio)`` is unbiased, never negative, and of lower variance than ``-log(ratio)``
    (Schulman, "Approximating KL Divergence", 2020).
    """
    log_ratio = log_probabilities - old_log_probabilities
    return (torch.expm1(log_ratio) - log_ratio).mean()


def clip_fraction(log_probabilities: Tensor, old_log_probabilities: Tensor, clip_ratio: float) -> Tensor:
    """The share of ``[batch]`` whose probability ratio lies outside the clip range."""
    ratio = torch.exp(log_probabilities - old_log_probabilities)
    return ((ratio - 1.0).abs() > clip_ratio).float().mean()


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """The share of the variance of ``returns`` that ``values`` foretell: 1 is all of it, 0 as much as their mean."""
    return 1.0 - (returns - values).var(unbiased=False) / (returns.var(unbiased=False) + 1e-12)
