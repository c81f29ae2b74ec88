from __future__ import annotations

import math

import pytest
import torch
from ppo import (
    approximate_kl,
    clip_fraction,
    clipped_policy_loss,
    explained_variance,
    generalized_advantage_estimation,
    truncated_importance_weights,
    value_loss,
)


def estimate(*, terminated: list[bool], truncated: list[bool]) -> list[float]:
    """One simulator, rewards 1, 2, 3; values 10, 20, 30 leading to 20, 30, 40; gamma 0.5, lambda 0.5."""
    ended = [done or cut for done, cut in zip(terminated, truncated, strict=True)]
    advantages = generalized_advantage_estimation(
        rewards=torch.tensor([[1.0], [2.0], [3.0]]),
        values=torch.tensor([[10.0], [20.0], [30.0]]),
        next_values=torch.tensor([[20.0], [30.0], [40.0]]),
        terminated=torch.tensor(terminated)[:, None],
        ended=torch.tensor(ended)[:, None],
        gamma=0.5,
        gae_lambda=0.5,
    )
    return advantages[:, 0].tolist()


def test_advantages_equal_the_hand_calculation() -> None:
    # deltas: 1 + 0.5*20 - 10 = 1;  2 + 0.5*30 - 20 = -3;  3 + 0.5*40 - 30 = -7.  Each step adds a quarter of the next.
    never = [False] * 3
    assert estimate(terminated=never, truncated=never) == [1 + 0.25 * -4.75, -3 + 0.25 * -7, -7]


def test_a_terminated_episode_has_no_future() -> None:
    # The second delta loses its successor's value, 2 - 20 = -18, and the third step's advantage.
    assert estimate(terminated=[False, True, False], truncated=[False] * 3) == [1 + 0.25 * -18, -18, -7]


def test_a_truncated_episode_keeps_the_value_of_its_successor() -> None:
    # The second delta stays -3; only the third step, of another episode, is cut off.
    assert estimate(terminated=[False] * 3, truncated=[False, True, False]) == [1 + 0.25 * -3, -3, -7]


def test_with_lambda_one_advantages_are_discounted_returns_less_values() -> None:
    steps, gamma = 5, 0.9
    rewards, values, last = torch.rand(steps, 2), torch.rand(steps, 2), torch.rand(1, 2)
    never = torch.zeros(steps, 2, dtype=torch.bool)
    advantages = generalized_advantage_estimation(
        rewards=rewards,
        values=values,
        next_values=torch.cat([values[1:], last]),
        terminated=never,
        ended=never,
        gamma=gamma,
        gae_lambda=1.0,
    )
    expected = last[0]
    for step in reversed(range(steps)):
        expected = rewards[step] + gamma * expected
    torch.testing.assert_close(advantages[0] + values[0], expected)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"),
    [
        (1.1, 2.0, 2.2),  # inside the range: as it is
        (1.5, 2.0, 2.4),  # too far in the direction asked for: no more gain than at 1.2
        (0.5, -2.0, -1.6),  # the same below: as at 0.8
        (0.5, 2.0, 1.0),  # too far in the wrong direction: counts in full
        (1.5, -2.0, -3.0),
    ],
)
def test_the_objective_is_clipped_only_in_the_direction_of_gain(
    ratio: float, advantage: float, objective: float
) -> None:
    loss = clipped_policy_loss(torch.tensor([math.log(ratio)]), torch.zeros(1), torch.tensor([advantage]), 0.2)
    assert loss.item() == pytest.approx(-objective)


def test_a_clipped_sample_has_no_gradient() -> None:
    log_probabilities = torch.log(torch.tensor([1.5, 1.1])).requires_grad_()
    clipped_policy_loss(log_probabilities, torch.zeros(2), torch.ones(2), 0.2).backward()
    assert log_probabilities.grad is not None
    assert log_probabilities.grad.tolist() == [0.0, pytest.approx(-1.1 / 2)]


def test_value_loss_is_half_the_mean_squared_error() -> None:
    assert value_loss(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])).item() == 1.0


def test_kl_estimate_agrees_with_the_closed_form_and_is_never_negative() -> None:
    old, new = torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.3, 1.2)
    actions = old.sample((200_000,))
    estimate = approximate_kl(new.log_prob(actions), old.log_prob(actions))
    assert estimate.item() == pytest.approx(torch.distributions.kl_divergence(old, new).item(), abs=0.005)
    assert approximate_kl(torch.tensor([-3.0]), torch.tensor([-1.0])).item() > 0
    assert approximate_kl(torch.ones(3), torch.ones(3)).item() == 0


def test_clip_fraction_counts_ratios_outside_the_range() -> None:
    assert clip_fraction(torch.log(torch.tensor([0.7, 0.9, 1.1, 1.3])), torch.zeros(4), 0.2).item() == 0.5


def test_importance_weights_are_ratios_up_to_the_cap() -> None:
    likes = torch.log(torch.tensor([0.1, 0.4, 0.9]))
    acted_by = torch.log(torch.tensor([0.2, 0.4, 0.1]))
    torch.testing.assert_close(truncated_importance_weights(likes, acted_by, 2.0), torch.tensor([0.5, 1.0, 2.0]))


def test_explained_variance_is_one_for_the_truth_and_nought_for_its_mean() -> None:
    returns = torch.tensor([1.0, 2.0, 6.0])
    assert explained_variance(returns, returns).item() == pytest.approx(1.0)
    assert explained_variance(torch.full((3,), 3.0), returns).item() == pytest.approx(0.0)
    assert explained_variance(-returns, returns).item() < 0
