"""Trains a policy for a simulated robot with PPO.

    python train_embodied_agent.py                                     the default: InvertedPendulum-v5
    python train_embodied_agent.py --config halfcheetah_ppo            a file in config/, or a path to one
    python train_embodied_agent.py runner.seed=1 env.total_num_envs=64         overrides, by their dotted names
    rlinf-launch --hosts nodes.txt train_embodied_agent.py cluster.num_nodes=2 \
        cluster.component_placement.env=0-1 cluster.component_placement.actor=0-1

Three groups of workers share the work: simulators (``env``), policy inference (``rollout``) and training
(``actor``).  ``cluster.component_placement`` says where they run.
"""

from __future__ import annotations

import argparse
import sys

from actor_worker import EmbodiedFSDPActor
from configuration import load_configuration
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--config", default="inverted_pendulum_ppo", metavar="NAME|PATH", help="default: %(default)s")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_intermixed_args(arguments)
    return load_configuration(options.config, options.overrides)


if __name__ == "__main__":
    try:
        main(parse_arguments(sys.argv[1:]))
    except ConfigError as error:
        sys.exit(f"error: {error}")
