from __future__ import annotations

import itertools
import math

import pytest
import torch

pytest.importorskip("transformers")

from evaluation import pass_at_k
from grpo import (
    LOSS_AGGREGATIONS,
    clipped_policy_loss,
    clipped_tokens,
    group_relative_advantages,
    kl_penalty,
    seq_mean_token_mean,
    token_mean,
    truncated_importance_weights,
)

ALL = torch.ones(2, 3, dtype=torch.bool)


def test_an_advantage_is_relative_to_the_group_in_standard_deviations() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    advantages = group_relative_advantages(rewards, epsilon=0.0 + 1e-9)
    torch.testing.assert_close(advantages[0], torch.tensor([1.5, -0.5, -0.5, -0.5]))
    torch.testing.assert_close(advantages[1], torch.tensor([0.5, 0.5, 0.5, -1.5]))
    assert advantages[2].tolist() == [0.0] * 4


def test_without_the_division_an_advantage_is_in_rewards() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    assert group_relative_advantages(rewards, divide_by_std=False).tolist() == [[0.75, -0.25, -0.25, -0.25]]


def test_the_gradient_ends_where_the_ratio_has_moved_far_enough_in_the_wanted_direction() -> None:
    old = torch.zeros(2, 3)
    new = torch.tensor([[0.5, 0.0, -0.5], [0.5, 0.0, -0.5]], requires_grad=True)
    clipped_policy_loss(new, old, torch.tensor([[1.0], [-1.0]]), ALL, 0.2, 0.2).mean().backward()
    assert new.grad is not None
    assert (new.grad != 0).tolist() == [[False, True, True], [True, True, False]]
    assert clipped_tokens(new, old, ALL, 0.2, 0.2).mean().item() == pytest.approx(2 / 3)


def test_a_higher_upper_limit_leaves_likelier_tokens_their_gradient() -> None:
    new = torch.tensor([[0.25, 0.5, -0.25]]).log1p().requires_grad_()
    clipped_policy_loss(new, torch.zeros(1, 3), torch.ones(1, 1), ALL[:1], 0.2, 0.3).sum().backward()
    assert new.grad is not None
    assert (new.grad != 0).tolist() == [[True, False, True]]
    assert clipped_tokens(new, torch.zeros(1, 3), ALL[:1], 0.2, 0.3).tolist() == [[0.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token-mean", (1 + 2 + 3 + 4) / 4),
        ("seq-mean-token-mean", ((1 + 2 + 3) / 3 + 4) / 2),
        ("seq-mean-token-sum", ((1 + 2 + 3) + 4) / 2),
    ],
)
def test_losses_are_aggregated_without_padding_whatever_stands_there(name: str, expected: float) -> None:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, float("inf"), float("nan")]])
    assert LOSS_AGGREGATIONS[name](values, mask).item() == expected


def test_padding_counts_for_nothing_in_the_policy_loss() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    old = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1e30, -1e30]])
    loss = clipped_policy_loss(torch.zeros(2, 3), old, torch.ones(2, 1), mask, 0.2, 0.2)
    assert seq_mean_token_mean(loss, mask).item() == token_mean(loss, mask).item() == -1.0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("k1", -math.log(2)),
        ("k2", math.log(2) ** 2 / 2),
        ("k3", 2 - 1 - math.log(2)),
        ("low_var_kl", 2 - 1 - math.log(2)),
        ("abs", math.log(2)),
    ],
)
def test_an_estimate_of_the_kl_is_its_formula_and_zero_at_the_reference(kind: str, expected: float) -> None:
    here = torch.full((2, 3), -1.0)
    assert kl_penalty(here, here, ALL, kind).abs().sum().item() == 0.0
    twice = kl_penalty(here, here + math.log(2), ALL, kind)  # the reference gives twice the probability
    torch.testing.assert_close(twice, torch.full((2, 3), expected))


def test_importance_weights_are_the_ratio_of_trainer_to_sampler_up_to_their_limit() -> None:
    sampled = torch.tensor([[0.5, 0.5, 0.1]]).log()
    trained = torch.tensor([[0.25, 0.75, 0.9]]).log()
    weights = truncated_importance_weights(trained, sampled, ALL[:1], clip=2.0)
    torch.testing.assert_close(weights, torch.tensor([[0.5, 1.5, 2.0]]))


@pytest.mark.parametrize(("right", "samples", "k"), [(0, 5, 2), (2, 5, 1), (2, 5, 3), (3, 6, 4), (6, 6, 6)])
def test_pass_at_k_is_the_share_of_all_choices_of_k_that_have_a_right_one(right: int, samples: int, k: int) -> None:
    verdicts = [True] * right + [False] * (samples - right)
    choices = list(itertools.combinations(verdicts, k))
    assert pass_at_k(right, samples, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_more_than_the_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"pass@17 of 16 samples"):
        pass_at_k(1, 16, 17)
