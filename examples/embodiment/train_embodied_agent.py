"""Trains a policy for a simulated robot with PPO.

    python train_embodied_agent.py                                     the default: InvertedPendulum-v5
    python train_embodied_agent.py --config halfcheetah_ppo            a file in config/, or a path to one
    python train_embodied_agent.py runner.seed=1 env.total_num_envs=64         overrides, by their dotted names
    rlinf-launch --hosts nodes.txt --sync train_embodied_agent.py cluster.num_nodes=2 \
        cluster.component_placement.env=0-1 cluster.component_placement.actor=0-1

Groups of workers share the work: simulators (``env``), training (``actor``) and, where the policy is large or
``rollout.placement=workers`` says so, inference (``rollout``).  ``cluster.component_placement`` says where they run;
what it leaves out is chosen by the machine.  What the examples share lies in ``common/`` beside this folder: ``--sync``
ships it, with the checkout.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for common/

from actor_worker import EmbodiedFSDPActor
from common.schema import restart_arguments
from configuration import SCHEMA, Configuration
from defaults import fill_in
from embodied_runner import EmbodiedRunner
from env_worker import EnvWorker
from rollout_worker import MultiStepRolloutWorker

from rlinf_async import Cluster, HybridComponentPlacement, Worker, WorkerGroup
from rlinf_async.errors import ConfigError


def main(cfg: Configuration) -> None:
    with Cluster(num_nodes=cfg.cluster.num_nodes) as cluster:
        cfg = fill_in(cfg, cluster.nodes)
        placement = HybridComponentPlacement(cfg, cluster)

        def launch(worker: type[Worker], name: str, env: dict[str, str] | None = None) -> WorkerGroup:
            strategy = placement.get_strategy(name)
            restarts = restart_arguments(cfg.cluster.supervision, name)
            return worker.create_group(cfg).launch(cluster, strategy, name, env=env, **restarts)

        actor = launch(EmbodiedFSDPActor, "actor")
        env = launch(EnvWorker, "env", {"MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl")} if cfg.runner.video else None)
        rollout = launch(MultiStepRolloutWorker, "rollout") if cfg.rollout.placement == "workers" else None
        runner = EmbodiedRunner(cfg, actor, env, rollout)
        runner.init_workers()
        runner.run()


def parse_arguments(arguments: list[str]) -> Configuration:
    cfg: Configuration = SCHEMA.parse(arguments, about=__doc__, default="inverted_pendulum_ppo")
    return cfg


if __name__ == "__main__":
    try:
        main(parse_arguments(sys.argv[1:]))
    except ConfigError as error:
        sys.exit(f"error: {error}")
