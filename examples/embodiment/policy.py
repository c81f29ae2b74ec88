"""Actor-critic policy: two small networks for actions and values, on observations with running normalisation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from configuration import Model
from rollouts import TaskShape
from torch import Tensor, nn


class RunningMoments(nn.Module):
    """Mean and variance of everything seen so far, merged batch by batch.

    The merge is that of Chan, Golub and LeVeque ("Updating Formulae and a Pairwise Algorithm for Computing
    Sample Variances", 1979).  The moments are buffers: they travel with the weights and lie in the checkpoint.
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
        """Takes in a batch of ``count`` vectors with this ``mean`` and (biased) ``variance``, both ``[size]``."""
        total = self.count + count
        shift = mean - self.mean
        spread = self.variance * self.count + variance * count + shift.square() * self.count * count / total
        self.mean += shift * count / total
        self.variance.copy_(spread / total)
        self.count.copy_(total)

    def normalize(self, vectors: Tensor, limit: float = 10.0) -> Tensor:
        """``[..., size]`` → the same shape with mean 0 and variance 1, cut off at ``limit`` deviations."""
        scale = torch.rsqrt(self.variance + 1e-8).float()
        return ((vectors - self.mean.float()) * scale).clamp(-limit, limit)


class GaussianPolicy(nn.Module):
    """A Gaussian over actions and a value of states, both from normalised observations.

    Actions are in units of the simulator's range: -1 is its lowest, 1 its highest.  The Gaussian reaches
    beyond; the simulator clips, the probabilities do not know of it.  Its width is learnt, and the same in
    every state.
    """

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden_sizes: Sequence[int] = (64, 64),
        initial_log_std: float = 0.0,
    ) -> None:
        super().__init__()
        self.moments = RunningMoments(observation_size)
        self.action_mean = _perceptron([observation_size, *hidden_sizes, action_size], last_gain=0.01)
        self.value = _perceptron([observation_size, *hidden_sizes, 1], last_gain=1.0)
        self.log_std = nn.Parameter(torch.full((action_size,), float(initial_log_std)))

    @classmethod
    def of(cls, model: Model, shape: TaskShape) -> GaussianPolicy:
        """The policy that ``actor.model`` describes, for a task of that shape."""
        return cls(shape.observation_size, shape.action_size, model.hidden_sizes, model.initial_log_std)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Actions for ``[batch, observation]`` and their log-probabilities.

        Args:
            noise: ``[batch, action]`` standard normal samples; none gives the most likely action.

        Returns:
            ``[batch, action]`` and ``[batch]``.
        """
        mean = self.action_mean(self.moments.normalize(observations))
        actions = mean if noise is None else mean + noise * self.log_std.exp()
        return actions, gaussian_log_probability(actions, mean, self.log_std)

    def judge(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the ``actions`` taken, and values of the states: both ``[batch]``."""
        seen = self.moments.normalize(observations)
        log_probabilities = gaussian_log_probability(actions, self.action_mean(seen), self.log_std)
        return log_probabilities, self.value(seen).squeeze(-1)

    def state_value(self, observations: Tensor) -> Tensor:
        """``[..., observation]`` → ``[...]``."""
        return self.value(self.moments.normalize(observations)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Of the Gaussian, in nats: a scalar, for its width depends on no state."""
        return (self.log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum()


def gaussian_log_probability(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of ``[..., action]`` under a diagonal Gaussian → ``[...]``."""
    distance = (actions - mean) * torch.exp(-log_std)
    return (-0.5 * distance.square() - log_std - 0.5 * math.log(2.0 * math.pi)).sum(-1)


def _perceptron(sizes: Sequence[int], last_gain: float) -> nn.Sequential:
    """Tanh layers with orthogonal weights; the last layer is linear, scaled by ``last_gain``."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        linear = nn.Linear(inputs, outputs)
        is_last = index == len(sizes) - 2
        nn.init.orthogonal_(linear.weight, last_gain if is_last else math.sqrt(2.0))
        nn.init.zeros_(linear.bias)
        layers += [linear] if is_last else [linear, nn.Tanh()]
    return nn.Sequential(*layers)
