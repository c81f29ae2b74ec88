"""The documentation's "High-Level Programming Flow": its configuration, its launch and its loop, with small workers.

A script: it runs under plain Python, and under ``rlinf-launch``, on any node that has eight devices or declares them.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from omegaconf import OmegaConf

from rlinf_async import AcceleratorUtil, Cluster, HybridComponentPlacement, Worker

CONFIG = """
cluster:
  num_nodes: 1
  component_placement:
    actor: 0-7
    env: 0-3
    rollout: 4-7
runner:
  max_steps: 2
env:
  horizon: 3
"""

ACTOR, ROLLOUT, ENV = (f"worker_group_{name}" for name in ("EmbodiedFSDPActor", "MultiStepRolloutWorker", "EnvWorker"))


class EmbodiedFSDPActor(Worker):
    """Rank r trains on the second or first half of what environment r // 2 has seen."""

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.cfg = cfg

    def init_worker(self) -> str:
        self.torch_platform.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group(backend=AcceleratorUtil.get_ccl_backend(self.accelerator_type))
        self.weights = torch.ones(4, device=self.torch_device_type)
        return f"{torch.distributed.get_backend()} on {self.weights.device}, seen as {os.environ['VISIBLE_DEVICES']}"

    def sync_model_to_rollout(self) -> None:
        if self._rank < 4:
            self.send(self.weights, ROLLOUT, self._rank)

    def recv_rollout_batch(self) -> None:
        self.batch = self.recv(ENV, self._rank // 2)

    def compute_advantages_and_returns(self) -> None:
        self.advantages = self.batch - self.batch.mean()

    def run_training(self) -> float:
        gradient = self.batch.sum()
        torch.distributed.all_reduce(gradient)
        self.weights = self.weights + 1
        return float(gradient)


class MultiStepRolloutWorker(Worker):
    """Answers the observations of the environment of its rank: one more than the sum of the policy's outputs."""

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.cfg = cfg

    def init_worker(self) -> str:
        return os.environ["VISIBLE_DEVICES"]

    def sync_model_from_actor(self) -> None:
        self.weights = self.recv(ACTOR, self._rank)

    def generate(self) -> None:
        for _ in range(self.cfg.env.horizon):
            self.send(self.recv(ENV, self._rank) * self.weights, ENV, self._rank)


class EnvWorker(Worker):
    """Shows ones, and gives two actors what it got for them."""

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.cfg = cfg

    def init_worker(self) -> str:
        return os.environ["VISIBLE_DEVICES"]

    def interact(self) -> None:
        seen = []
        for _ in range(self.cfg.env.horizon):
            self.send(torch.ones(4), ROLLOUT, self._rank)
            seen.append(self.recv(ROLLOUT, self._rank))
        for half in range(2):
            self.send(torch.stack(seen), ACTOR, 2 * self._rank + half)


class EmbodiedRunner:
    """The loop of the documentation."""

    def __init__(self, cfg: Any, actor: Any, rollout: Any, env: Any) -> None:
        self.cfg, self.actor, self.rollout, self.env = cfg, actor, rollout, env

    def init_workers(self) -> None:
        print("ACTOR", self.actor.init_worker().wait())
        print("ROLLOUT", self.rollout.init_worker().wait())
        print("ENV", self.env.init_worker().wait())

    def update_rollout_weights(self) -> None:
        rollout_futures = self.rollout.sync_model_from_actor()
        actor_futures = self.actor.sync_model_to_rollout()
        actor_futures.wait()
        rollout_futures.wait()

    def generate_rollouts(self) -> None:
        env_futures = self.env.interact()
        rollout_futures = self.rollout.generate()
        actor_futures = self.actor.recv_rollout_batch()
        env_futures.wait()
        actor_futures.wait()
        rollout_futures.wait()

    def run(self) -> None:
        for step in range(self.cfg.runner.max_steps):
            self.update_rollout_weights()
            self.generate_rollouts()
            self.actor.compute_advantages_and_returns().wait()
            print("STEP", step, self.actor.run_training().wait())


def main() -> None:
    cfg = OmegaConf.create(CONFIG)
    cluster = Cluster(cfg.cluster.num_nodes)
    component_placement = HybridComponentPlacement(cfg, cluster)
    # Create actor worker group
    actor_placement = component_placement.get_strategy("actor")
    actor_group = EmbodiedFSDPActor.create_group(cfg).launch(cluster, placement_strategy=actor_placement)
    # Create rollout worker group
    rollout_placement = component_placement.get_strategy("rollout")
    rollout_group = MultiStepRolloutWorker.create_group(cfg).launch(cluster, placement_strategy=rollout_placement)
    # Create env worker group
    env_placement = component_placement.get_strategy("env")
    env_group = EnvWorker.create_group(cfg).launch(cluster, placement_strategy=env_placement)
    runner = EmbodiedRunner(cfg=cfg, actor=actor_group, rollout=rollout_group, env=env_group)
    runner.init_workers()
    runner.run()
    cluster.close()


if __name__ == "__main__":
    main()
