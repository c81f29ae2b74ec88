"""Actor-critic policies: two small networks for actions and values, on observations with running normalisation."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from configuration import Model
from rollouts import TaskShape
from torch import Tensor, nn


class RunningMoments(nn.Module):
    """Running mean and variance, merged batch by batch.

    The merge follows Chan, Golub and LeVeque ("Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances", 1979). The moments are buffers, so they travel with the weights and are part of checkpoints.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))

    def merge(self, count: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Merge a batch of ``count`` vectors with this ``mean`` and (biased) ``variance``, both ``[size]``."""
        total = self.count + count
        shift = mean - self.mean
        spread = self.variance * self.count + variance * count + shift.square() * self.count * count / total
        self.mean += shift * count / total
        self.variance.copy_(spread / total)
        self.count.copy_(total)

    def normalize(self, vectors: Tensor, limit: float = 10.0) -> Tensor:
        """Normalise ``[..., size]`` to mean 0 and variance 1, clipped at ``limit`` deviations."""
        scale = torch.rsqrt(self.variance + 1e-8).float()
        return ((vectors - self.mean.float()) * scale).clamp(-limit, limit)


class Policy(nn.Module, ABC):
    """A distribution over actions and a value of states, both from normalised observations."""

    value: nn.Sequential

    def __init__(self, observation_size: int) -> None:
        super().__init__()
        self.moments = RunningMoments(observation_size)

    @abstractmethod
    def noise(self, batch: int, generator: torch.Generator) -> Tensor:
        """Return noise for sampling ``batch`` actions, ``[batch, action]``, on the generator's device."""

    @abstractmethod
    def act(self, observations: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return actions for ``[batch, observation]`` and their log-probabilities, ``[batch]``.

        Args:
            noise: noise for samples; None for the most likely actions.
        """

    @abstractmethod
    def judge(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of the ``actions`` taken, and values of the states; both ``[batch]``."""

    @abstractmethod
    def entropy(self, observations: Tensor) -> Tensor:
        """Return the mean entropy of the actions for ``[batch, observation]``, in nats."""

    def state_value(self, observations: Tensor) -> Tensor:
        """``[..., observation]`` → ``[...]``."""
        return self.value(self.moments.normalize(observations)).squeeze(-1)

    def spread(self) -> dict[str, float]:
        """Return metrics of the spread of actions."""
        return {}


class GaussianPolicy(Policy):
    """A Gaussian over actions.

    Actions are in units of the simulator's range, from -1 to 1. The Gaussian reaches beyond: the simulator clips
    actions, but their probabilities ignore that. The width is learned, and the same in every state.
    """

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden_sizes: Sequence[int] = (64, 64),
        initial_log_std: float = 0.0,
    ) -> None:
        super().__init__(observation_size)
        self.action_mean = _perceptron([observation_size, *hidden_sizes, action_size], last_gain=0.01)
        self.value = _perceptron([observation_size, *hidden_sizes, 1], last_gain=1.0)
        self.log_std = nn.Parameter(torch.full((action_size,), float(initial_log_std)))

    def noise(self, batch: int, generator: torch.Generator) -> Tensor:
        """Return standard normal noise."""
        return torch.randn((batch, len(self.log_std)), generator=generator, device=generator.device)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``[batch, action]`` and ``[batch]``."""
        mean = self.action_mean(self.moments.normalize(observations))
        actions = mean if noise is None else mean + noise * self.log_std.exp()
        return actions, gaussian_log_probability(actions, mean, self.log_std)

    def judge(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Of ``actions [batch, action]``."""
        seen = self.moments.normalize(observations)
        log_probabilities = gaussian_log_probability(actions, self.action_mean(seen), self.log_std)
        return log_probabilities, self.value(seen).squeeze(-1)

    def entropy(self, observations: Tensor) -> Tensor:
        """Return the entropy of the Gaussian, whose width does not depend on the state."""
        return (self.log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum()

    def spread(self) -> dict[str, float]:
        return {"action_deviation": self.log_std.exp().mean().item()}


class CategoricalPolicy(Policy):
    """A categorical distribution over ``actions`` choices, numbered from 0."""

    def __init__(self, observation_size: int, actions: int, hidden_sizes: Sequence[int] = (64, 64)) -> None:
        super().__init__(observation_size)
        self.logits = _perceptron([observation_size, *hidden_sizes, actions], last_gain=0.01)
        self.value = _perceptron([observation_size, *hidden_sizes, 1], last_gain=1.0)
        self._actions = actions

    def noise(self, batch: int, generator: torch.Generator) -> Tensor:
        """Return Gumbel noise: the argmax of logits plus such noise is a sample of their softmax."""
        times = torch.empty((batch, self._actions), device=generator.device).exponential_(generator=generator)
        return -times.log()

    def act(self, observations: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return choices ``[batch]`` and log-probabilities ``[batch]``."""
        likelihoods = self._log_probabilities(self.moments.normalize(observations))
        actions = (likelihoods if noise is None else likelihoods + noise).argmax(-1)
        return actions, _of_choices(likelihoods, actions)

    def judge(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Of ``actions [batch]``."""
        seen = self.moments.normalize(observations)
        return _of_choices(self._log_probabilities(seen), actions), self.value(seen).squeeze(-1)

    def entropy(self, observations: Tensor) -> Tensor:
        likelihoods = self._log_probabilities(self.moments.normalize(observations))
        return -(likelihoods.exp() * likelihoods).sum(-1).mean()

    def _log_probabilities(self, seen: Tensor) -> Tensor:
        return torch.log_softmax(self.logits(seen), dim=-1)


def make_policy(model: Model, shape: TaskShape) -> Policy:
    """Build the policy of ``actor.model`` for a task of this shape."""
    if shape.discrete:
        return CategoricalPolicy(shape.observation_size, shape.action_size, model.hidden_sizes)
    return GaussianPolicy(shape.observation_size, shape.action_size, model.hidden_sizes, model.initial_log_std)


def _of_choices(log_probabilities: Tensor, actions: Tensor) -> Tensor:
    """Map ``[..., actions]`` logits and ``[...]`` choices to log-probabilities ``[...]``."""
    return log_probabilities.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def gaussian_log_probability(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-density of ``[..., action]`` under a diagonal Gaussian, ``[...]``."""
    distance = (actions - mean) * torch.exp(-log_std)
    return (-0.5 * distance.square() - log_std - 0.5 * math.log(2.0 * math.pi)).sum(-1)


def _perceptron(sizes: Sequence[int], last_gain: float) -> nn.Sequential:
    """Return tanh layers with orthogonal weights; the last layer is linear, scaled by ``last_gain``."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        linear = nn.Linear(inputs, outputs)
        is_last = index == len(sizes) - 2
        nn.init.orthogonal_(linear.weight, last_gain if is_last else math.sqrt(2.0))
        nn.init.zeros_(linear.bias)
        layers += [linear] if is_last else [linear, nn.Tanh()]
    return nn.Sequential(*layers)
