"""Trains a policy for a simulated robot with PPO.

    python train_embodied_agent.py                                     the default: InvertedPendulum-v5
    python train_embodied_agent.py --config halfcheetah_ppo            a file in config/, or a path to one
    python train_embodied_agent.py runner.seed=1 env.total_num_envs=64         overrides, by their dotted names
    rlinf-launch --hosts nodes.txt --sync train_embodied_agent.py cluster.num_nodes=2 \
        cluster.component_placement.env=0-1 cluster.component_placement.actor=0-1

Three groups of workers share the work: simulators (``env``), policy inference (``rollout``) and training
(``actor``).  ``cluster.component_placement`` says where they run.  What the examples share lies in
``common/`` beside this folder: ``--sync`` ships it, with the checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for common/

from actor_worker import EmbodiedFSDPActor
from configuration import SCHEMA
from embodied_runner import EmbodiedRunner
from env_worker import EnvWorker
from omegaconf import DictConfig
from rollout_worker import MultiStepRolloutWorker

from rlinf_async import Cluster, HybridComponentPlacement
from rlinf_async.errors import ConfigError


def main(cfg: DictConfig) -> None:
    with Cluster(num_nodes=cfg.cluster.num_nodes) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        actor = EmbodiedFSDPActor.create_group(cfg).launch(
            cluster, placement_strategy=placement.get_strategy("actor"), name="actor"
        )
        rollout = MultiStepRolloutWorker.create_group(cfg).launch(
            cluster, placement_strategy=placement.get_strategy("rollout"), name="rollout"
        )
        env = EnvWorker.create_group(cfg).launch(cluster, placement_strategy=placement.get_strategy("env"), name="env")
        runner = EmbodiedRunner(cfg=cfg, actor=actor, rollout=rollout, env=env)
        runner.init_workers()
        runner.run()


def parse_arguments(arguments: list[str]) -> DictConfig:
    return SCHEMA.parse(arguments, about=__doc__, default="inverted_pendulum_ppo")


if __name__ == "__main__":
    try:
        main(parse_arguments(sys.argv[1:]))
    except ConfigError as error:
        sys.exit(f"error: {error}")
