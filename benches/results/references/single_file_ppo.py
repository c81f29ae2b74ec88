"""Single-file PPO in the manner of CleanRL's ``ppo_continuous_action.py``: one process, vectorised simulators, torch.

    python single_file_ppo.py DIR

DIR/settings.json has the hyperparameters (``benches.results.tasks.Settings``); the script writes DIR/tensorboard and
DIR/evaluation.json. It differs from CleanRL so that every contestant runs the same algorithm: truncated episodes keep
the value of their last state, observations are normalised by moments that all simulators share, rewards by a constant.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import RecordEpisodeStatistics, RescaleAction, TransformReward
from gymnasium.wrappers.utils import RunningMeanStd
from torch import Tensor, nn
from torch.distributions.normal import Normal
from torch.utils.tensorboard import SummaryWriter

RETURN_WINDOW = 20
"""Number of episodes in the mean training return."""


def make_env(env_id: str, reward_scale: float = 1.0) -> gym.Env[Any, Any]:
    """Return a simulator with actions in [-1, 1], scaled rewards, and statistics of episodes by unscaled ones."""
    env = RescaleAction(RecordEpisodeStatistics(gym.make(env_id)), -1.0, 1.0)
    return TransformReward(env, lambda reward: float(reward) * reward_scale)


def perceptron(sizes: Sequence[int], last_gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    linears = layers[::2]
    for linear in linears:
        nn.init.orthogonal_(linear.weight, last_gain if linear is linears[-1] else 2**0.5)
        nn.init.zeros_(linear.bias)
    return nn.Sequential(*layers[:-1])


class Agent(nn.Module):
    def __init__(self, args: Any, observation_size: int, action_size: int) -> None:
        super().__init__()
        self.critic = perceptron([observation_size, *args.hidden_sizes, 1], 1.0)
        self.actor_mean = perceptron([observation_size, *args.hidden_sizes, action_size], 0.01)
        self.actor_logstd = nn.Parameter(torch.full((1, action_size), args.initial_log_std))
        self.moments = RunningMeanStd(shape=(observation_size,))

    def see(self, observations: Any) -> Tensor:
        """Normalise raw ``[..., observation]`` to float32."""
        scaled = (observations - self.moments.mean) / np.sqrt(self.moments.var + 1e-8)
        return torch.as_tensor(np.clip(scaled, -10, 10), dtype=torch.float32)

    def get_value(self, x: Tensor) -> Tensor:
        return self.critic(x).flatten()

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean = self.actor_mean(x)
        normal = Normal(mean, self.actor_logstd.expand_as(mean).exp())
        action = normal.sample() if action is None else action
        return action, normal.log_prob(action).sum(1), normal.entropy().sum(1), self.get_value(x)


def evaluate(act: Callable[[Any], Any], env_id: str, seeds: Sequence[int]) -> list[float]:
    """Return the undiscounted return of an episode per seed; ``act`` maps ``[1, observation]`` to ``[1, action]``."""
    returns = []
    env = make_env(env_id)
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(np.clip(act(observation[None])[0], -1, 1))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return returns


def read_arguments(path: Path) -> Any:
    """Return the settings in a run's folder as attributes."""
    return SimpleNamespace(**json.loads((path / "settings.json").read_text()))


def write_evaluation(path: Path, args: Any, returns: list[float], training_seconds: float, *packages: str) -> None:
    """Write a run's evaluation.json, like the embodiment example's, with the versions of ``packages``."""
    result = {
        "env": args.env,
        "seed": args.seed,
        "samples": args.updates * args.num_envs * args.rollout_steps,
        "training_seconds": training_seconds,
        "mean_return": sum(returns) / len(returns),
        "returns": returns,
        "episode_seeds": args.evaluation_seeds,
        "threads": torch.get_num_threads(),
        "versions": {package: version(package) for package in packages},
    }
    (path / "evaluation.json").write_text(json.dumps(result, indent=2) + "\n")


class Training:
    def __init__(self, args: Any, writer: SummaryWriter) -> None:
        self.args, self.writer = args, writer
        torch.manual_seed(args.seed)
        self.envs = gym.vector.SyncVectorEnv(
            [lambda: make_env(args.env, args.reward_scale)] * args.num_envs,
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        )
        size, actions = self.envs.single_observation_space.shape[0], self.envs.single_action_space.shape[0]
        self.agent = Agent(args, size, actions)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=args.lr, eps=args.adam_eps)
        shape = (args.rollout_steps, args.num_envs)
        self.obs, self.actions = torch.zeros(*shape, size), torch.zeros(*shape, actions)
        self.logprobs, self.rewards, self.values = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
        self.dones = torch.zeros(shape)
        self.episodes: deque[float] = deque(maxlen=RETURN_WINDOW)
        raw, _ = self.envs.reset(seed=args.seed * args.num_envs)
        self.agent.moments.update(raw)
        self.next_obs = self.agent.see(raw)

    @torch.no_grad()
    def rollout(self) -> None:
        for step in range(self.args.rollout_steps):
            self.obs[step] = self.next_obs
            action, self.logprobs[step], _, self.values[step] = self.agent.get_action_and_value(self.next_obs)
            self.actions[step] = action
            raw, reward, terminated, truncated, infos = self.envs.step(action.clamp(-1, 1).numpy())
            self.rewards[step] = torch.as_tensor(reward)
            self.dones[step] = torch.as_tensor(terminated | truncated)
            if "final_info" in infos:
                self.episodes.extend(infos["final_info"]["episode"]["r"][infos["_final_info"]])
                for index in np.flatnonzero(truncated & ~terminated):
                    last = self.agent.see(infos["final_obs"][index][None])
                    self.rewards[step, index] += self.args.gamma * self.agent.get_value(last)[0]
            self.agent.moments.update(raw)
            self.next_obs = self.agent.see(raw)

    @torch.no_grad()
    def advantages(self) -> Tensor:
        advantages, following = torch.zeros_like(self.rewards), torch.zeros(self.args.num_envs)
        next_value = self.agent.get_value(self.next_obs)
        for step in reversed(range(self.args.rollout_steps)):
            going_on = 1.0 - self.dones[step]
            delta = self.rewards[step] + self.args.gamma * next_value * going_on - self.values[step]
            following = delta + self.args.gamma * self.args.gae_lambda * going_on * following
            advantages[step], next_value = following, self.values[step]
        return advantages

    def update(self, advantages: Tensor) -> None:
        args, returns = self.args, (advantages + self.values).flatten()
        obs, actions, old = self.obs.flatten(0, 1), self.actions.flatten(0, 1), self.logprobs.flatten()
        advantages = advantages.flatten()
        for _ in range(args.update_epochs):
            for chosen in torch.randperm(len(old)).split(args.minibatch_size):
                _, new, entropy, value = self.agent.get_action_and_value(obs[chosen], actions[chosen])
                ratio = (new - old[chosen]).exp()
                gain = advantages[chosen]
                if args.normalize_advantages:
                    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip_ratio, 1 + args.clip_ratio)
                loss = torch.max(-gain * ratio, -gain * clipped).mean() - args.entropy_bonus * entropy.mean()
                loss = loss + args.value_loss_coefficient * 0.5 * (value - returns[chosen]).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), args.max_grad_norm)
                self.optimizer.step()
            with torch.no_grad():
                approx_kl = (ratio - 1 - ratio.log()).mean()
            if args.target_kl is not None and approx_kl > args.target_kl:
                break

    def run(self) -> None:
        for iteration in range(self.args.updates):
            if self.args.lr_schedule == "linear":
                self.optimizer.param_groups[0]["lr"] = self.args.lr * (1 - iteration / self.args.updates)
            self.rollout()
            self.update(self.advantages())
            if self.episodes:
                samples = (iteration + 1) * self.args.num_envs * self.args.rollout_steps
                self.writer.add_scalar("rollout/return", np.mean(self.episodes), samples)
        self.envs.close()


def main(path: Path) -> None:
    args = read_arguments(path)
    started = time.perf_counter()
    with SummaryWriter(str(path / "tensorboard")) as writer:
        training = Training(args, writer)
        training.run()
    seconds, agent = time.perf_counter() - started, training.agent
    with torch.no_grad():
        returns = evaluate(lambda seen: agent.actor_mean(agent.see(seen)).numpy(), args.env, args.evaluation_seeds)
    write_evaluation(path, args, returns, seconds, "torch", "gymnasium", "mujoco")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
