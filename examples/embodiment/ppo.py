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
    """Return advantages of ``steps`` consecutive transitions in each of ``envs`` simulators.

    Equation 16 of arXiv 1506.02438: the sum over l of ``(gamma * lambda)^l * delta[t+l]``, where
    ``delta[t] = reward[t] + gamma * V(s[t+1]) - V(s[t])`` is the one-step error of the value function.

    The two kinds of episode ends differ. After a *terminated* episode, the value of the successor state counts as zero.
    After a *truncated* one, which a time limit cut, the successor keeps its value. In both cases, the sum stops at the
    end of the episode.

    Args:
        rewards: ``[steps, envs]``.
        values: ``[steps, envs]``, V of the state before each step.
        next_values: ``[steps, envs]``, V of the state after each step, before any reset.
        terminated: ``[steps, envs]`` bool, True where the task itself ended.
        ended: ``[steps, envs]`` bool, True where the episode ended for either reason.

    Returns:
        ``[steps, envs]``. Adding ``values`` gives the lambda-returns, the targets of the value function.
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
    """Return the negated clipped objective, equation 7 of arXiv 1707.06347, averaged over ``[batch]``.

    A step gains nothing from moving an action's probability by more than ``clip_ratio`` in the direction that its
    advantage favours; a step back always counts.
    """
    ratio = torch.exp(log_probabilities - old_log_probabilities)
    clipped = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    return -torch.minimum(ratio * advantages, clipped * advantages).mean()


def truncated_importance_weights(log_probabilities: Tensor, acted_by: Tensor, cap: float) -> Tensor:
    """Return importance weights of actions that older weights took: the probability ratio, at most ``cap``.

    They decouple the clipped objective: it clips around the learning policy, and corrects for the acting one (Hilton et
    al., "Batch Size-Invariance for Policy Optimization", arXiv 2110.00641, equation 3). Large ratios are clipped as in
    Espeholt et al., "IMPALA", arXiv 1802.01561.

    Args:
        log_probabilities, acted_by: ``[...]``, by the policy before it learns, and by the acting policy.
    """
    return torch.exp(log_probabilities - acted_by).clamp(max=cap)


def value_loss(values: Tensor, returns: Tensor) -> Tensor:
    """Return half the mean squared error over ``[batch]``."""
    return 0.5 * (values - returns).square().mean()


def approximate_kl(log_probabilities: Tensor, old_log_probabilities: Tensor) -> Tensor:
    """Estimate KL(old || new) from actions of the old policy, ``[batch]`` → scalar.

    ``ratio - 1 - log(ratio)`` is unbiased, never negative, and of lower variance than ``-log(ratio)``
    (Schulman, "Approximating KL Divergence", 2020).
    """
    log_ratio = log_probabilities - old_log_probabilities
    return (torch.expm1(log_ratio) - log_ratio).mean()


def clip_fraction(log_probabilities: Tensor, old_log_probabilities: Tensor, clip_ratio: float) -> Tensor:
    """Return the share of ``[batch]`` whose probability ratio lies outside the clip range."""
    ratio = torch.exp(log_probabilities - old_log_probabilities)
    return ((ratio - 1.0).abs() > clip_ratio).float().mean()


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """Return the explained variance: 1 if ``values`` predict ``returns`` perfectly, 0 if no better than their mean."""
    return 1.0 - (returns - values).var(unbiased=False) / (returns.var(unbiased=False) + 1e-12)
