"""PPO in one file: rollout workers balance a pole, a learner trains the policy, its weights go back as versions.

    python examples/ppo_single_file.py                          # or rlinf-launch examples/ppo_single_file.py
    python examples/ppo_single_file.py --seed 1 --updates 20    # every field of Config is an option

CartPole-v1 pays 1 for each step that the pole stands, 500 at most.  Seeds 0, 1 and 2 end with a mean return of 500.
"""

import argparse
import asyncio
from dataclasses import dataclass, fields

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import Tensor, nn
from torch.distributions import Categorical

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker, follow, publish, wait_all


@dataclass(frozen=True)
class Config:
    seed: int = 0
    workers: int = 2  # rollout processes
    envs: int = 8  # simulators per worker
    steps: int = 128  # steps of each simulator per update
    updates: int = 80
    epochs: int = 6  # passes over the experience of an update
    minibatch: int = 256
    lr: float = 1e-3  # initial value; decays to zero
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_bonus: float = 0.01


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        self.value = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    @torch.no_grad()
    def with_advantages(self, cfg: Config, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return generalised advantages and valid steps. Truncated episodes keep the value of their last state."""
        value, next_value = (self.value(batch[name])[..., 0] for name in ("seen", "next"))
        advantage = batch["reward"] + cfg.gamma * next_value * ~batch["terminated"] - value
        for step in reversed(range(cfg.steps - 1)):
            advantage[step] += cfg.gamma * cfg.gae_lambda * ~batch["ended"][step] * advantage[step + 1]
        batch = batch | {"advantage": advantage, "return": advantage + value}
        return {name: tensor[batch["valid"]] for name, tensor in batch.items()}

    def loss(self, cfg: Config, batch: dict[str, Tensor]) -> Tensor:
        chosen = Categorical(logits=self.logits(batch["seen"]))
        ratio = torch.exp(chosen.log_prob(batch["action"]) - batch["old"])
        advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-8)
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * advantage).mean()
        error = (self.value(batch["seen"])[..., 0] - batch["return"]).square().mean()
        return 0.5 * error - gain - cfg.entropy_bonus * chosen.entropy().mean()


class Rollout(Worker):
    async def collect(self, cfg: Config, rollouts: Channel) -> float:
        """Make one rollout with each version of the weights. Return the mean return of the last 20 episodes."""
        torch.set_num_threads(1)
        torch.manual_seed(1000 * cfg.seed + 1 + self._rank)
        policy, envs = Policy(), RecordEpisodeStatistics(gymnasium.make_vec("CartPole-v1", cfg.envs), buffer_length=20)
        (self.seen, _), self.ended = envs.reset(seed=1000 * cfg.seed + self._rank * cfg.envs), np.zeros(cfg.envs, bool)
        async with follow(policy, of="learner") as weights:
            for version in range(1, cfg.updates + 1):
                await weights.wait_version(version)
                async with weights.reading():  # no weights change within this block
                    rollout = self.roll_out(policy, envs, cfg.steps)
                await rollouts.put(rollout, key=self._rank)
                if version % 10 == 0:
                    print(f"update {version}: mean return {np.mean(envs.return_queue):.0f}", flush=True)
        return float(np.mean(envs.return_queue))

    @torch.no_grad()
    def roll_out(self, policy: Policy, envs: RecordEpisodeStatistics, steps: int) -> dict[str, Tensor]:
        """Return ``[steps, envs, ...]`` of everything. The step after an episode's end only resets and is not valid."""
        rollout = []
        for _ in range(steps):
            chosen = Categorical(logits=policy.logits(torch.from_numpy(self.seen)))
            action = chosen.sample()
            step = {"seen": self.seen, "valid": ~self.ended, "action": action, "old": chosen.log_prob(action)}
            self.seen, reward, terminated, truncated, _ = envs.step(action.numpy())
            self.ended = terminated | truncated
            step |= {"next": self.seen, "reward": np.float32(reward), "terminated": terminated, "ended": self.ended}
            rollout.append({name: torch.as_tensor(value) for name, value in step.items()})
        return {name: torch.stack([step[name] for step in rollout]) for name in rollout[0]}


class Learner(Worker):
    async def train(self, cfg: Config, rollouts: Channel) -> None:
        """Publish version after version of the weights, and learn from the rollouts of each."""
        torch.set_num_threads(1)
        torch.manual_seed(1000 * cfg.seed)
        policy = Policy()
        optimizer = torch.optim.Adam(policy.parameters(), lr=cfg.lr, eps=1e-5)
        async with publish(policy, to="rollout") as weights:  # version 1
            for update in range(cfg.updates):
                optimizer.param_groups[0]["lr"] = cfg.lr * (1 - update / cfg.updates)
                parts = [await rollouts.get(key=rank) for rank in range(cfg.workers)]
                batch = {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]}
                batch = policy.with_advantages(cfg, batch)
                for _ in range(cfg.epochs):
                    for rows in torch.randperm(len(batch["action"])).split(cfg.minibatch):
                        optimizer.zero_grad()
                        policy.loss(cfg, {name: tensor[rows] for name, tensor in batch.items()}).backward()
                        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                        optimizer.step()
                await weights.send()


async def main(cfg: Config) -> None:
    async with Cluster(num_nodes=1) as cluster, Channel.create("rollouts") as rollouts:
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0] * cfg.workers), name="rollout")
        learner = Learner.create_group().launch(cluster, NodePlacementStrategy([0]), name="learner")
        _, returns = await wait_all(learner.train(cfg, rollouts), rollout.collect(cfg, rollouts))
    print(f"mean return of the last {20 * cfg.workers} episodes: {np.mean(returns):.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Config):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    asyncio.run(main(Config(**vars(parser.parse_args()))))
