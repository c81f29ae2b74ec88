from __future__ import annotations

import math

import torch
from configuration import Model
from policy import CategoricalPolicy, GaussianPolicy, RunningMoments, gaussian_log_probability, make_policy
from rollouts import TaskShape


def batch_moments(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch = batch.double()
    return torch.tensor(float(len(batch)), dtype=torch.float64), batch.mean(0), batch.var(0, unbiased=False)


def test_moments_merged_batch_by_batch_equal_those_of_everything() -> None:
    everything = torch.randn(100, 3) * torch.tensor([1.0, 10.0, 0.1]) + torch.tensor([0.0, 5.0, -100.0])
    moments = RunningMoments(3)
    for batch in everything.split([7, 60, 33]):
        moments.merge(*batch_moments(batch))
    count, mean, variance = batch_moments(everything)
    assert moments.count == count
    torch.testing.assert_close(moments.mean, mean)
    torch.testing.assert_close(moments.variance, variance)


def test_normalized_vectors_have_mean_zero_and_variance_one_and_are_cut_off() -> None:
    seen = torch.randn(1000, 2) * 7 + 3
    moments = RunningMoments(2)
    moments.merge(*batch_moments(seen))
    normal = moments.normalize(seen)
    torch.testing.assert_close(normal.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.std(0), torch.ones(2), atol=1e-3, rtol=0)
    assert moments.normalize(torch.tensor([1e6, -1e6])).tolist() == [10.0, -10.0]


def test_fresh_moments_leave_vectors_as_they_are() -> None:
    vectors = torch.randn(4, 3)
    torch.testing.assert_close(RunningMoments(3).normalize(vectors), vectors)


def test_log_probability_agrees_with_torch_distributions() -> None:
    mean, log_std, actions = torch.randn(5, 2), torch.tensor([0.3, -0.7]), torch.randn(5, 2)
    expected = torch.distributions.Normal(mean, log_std.exp()).log_prob(actions).sum(-1)
    torch.testing.assert_close(gaussian_log_probability(actions, mean, log_std), expected)


def test_entropy_agrees_with_torch_distributions() -> None:
    policy = GaussianPolicy(4, 2, initial_log_std=-0.5)
    expected = torch.distributions.Normal(torch.zeros(2), torch.full((2,), math.exp(-0.5))).entropy().sum()
    torch.testing.assert_close(policy.entropy(torch.randn(3, 4)), expected)


def test_acting_and_judging_agree_on_the_log_probability() -> None:
    policy = GaussianPolicy(4, 2)
    observations = torch.randn(6, 4)
    actions, log_probabilities = policy.act(observations, torch.randn(6, 2))
    judged, values = policy.judge(observations, actions)
    torch.testing.assert_close(judged, log_probabilities)
    torch.testing.assert_close(values, policy.state_value(observations))
    assert values.shape == (6,)


def test_without_noise_the_most_likely_action_is_taken() -> None:
    policy = GaussianPolicy(4, 2)
    observations = torch.randn(6, 4)
    actions, best = policy.act(observations)
    _, other = policy.act(observations, torch.randn(6, 2))
    torch.testing.assert_close(actions, policy.act(observations, torch.zeros(6, 2))[0])
    assert (best > other).all()


def test_no_observations_give_no_actions() -> None:
    actions, log_probabilities = GaussianPolicy(4, 2).act(torch.zeros(0, 4))
    assert actions.shape == (0, 2)
    assert log_probabilities.shape == (0,)


def test_moments_travel_with_the_weights() -> None:
    policy, copy = GaussianPolicy(4, 2), GaussianPolicy(4, 2)
    policy.moments.merge(*batch_moments(torch.randn(50, 4) + 2))
    copy.load_state_dict(policy.state_dict())
    observations = torch.randn(3, 4)
    torch.testing.assert_close(copy.act(observations)[0], policy.act(observations)[0])


def test_a_task_with_choices_has_a_categorical_policy_and_one_with_forces_a_gaussian() -> None:
    assert isinstance(make_policy(Model(), TaskShape(4, 3, discrete=True)), CategoricalPolicy)
    assert isinstance(make_policy(Model(), TaskShape(4, 3)), GaussianPolicy)


def categorical(actions: int = 3) -> tuple[CategoricalPolicy, torch.distributions.Categorical, torch.Tensor]:
    """A policy, and what it is to decide by for some observations."""
    policy, observations = CategoricalPolicy(4, actions), torch.randn(6, 4)
    torch.nn.init.normal_(policy.logits[-1].weight)
    return policy, torch.distributions.Categorical(logits=policy.logits(observations)), observations


def test_choices_agree_with_torch_distributions() -> None:
    policy, expected, observations = categorical()
    actions, log_probabilities = policy.act(observations, policy.noise(6, torch.Generator().manual_seed(0)))
    torch.testing.assert_close(log_probabilities, expected.log_prob(actions))
    judged, values = policy.judge(observations, actions)
    torch.testing.assert_close(judged, log_probabilities)
    torch.testing.assert_close(values, policy.state_value(observations))
    torch.testing.assert_close(policy.entropy(observations), expected.entropy().mean())


def test_choices_come_as_often_as_they_are_likely_and_without_noise_the_likeliest() -> None:
    policy, expected, observations = categorical()
    noise = policy.noise(6 * 20_000, torch.Generator().manual_seed(0))
    actions, _ = policy.act(observations.repeat(20_000, 1), noise)
    shares = torch.nn.functional.one_hot(actions.view(20_000, 6), 3).float().mean(0)
    torch.testing.assert_close(shares, expected.probs, atol=0.02, rtol=0)
    assert torch.equal(policy.act(observations)[0], expected.probs.argmax(-1))


def test_no_observations_give_no_choices() -> None:
    actions, log_probabilities = CategoricalPolicy(4, 2).act(torch.zeros(0, 4))
    assert actions.shape == log_probabilities.shape == (0,)
