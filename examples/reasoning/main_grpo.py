"""Teaches a small language model arithmetic with GRPO.

    python main_grpo.py                                      the default: two_terms_disaggregated
    python main_grpo.py --config two_terms_collocated        a file in config/math/, or a path to one
    python main_grpo.py runner.seed=1 algorithm.group_size=16          overrides, by their dotted names
    rlinf-launch --hosts nodes.txt --sync main_grpo.py cluster.num_nodes=2 cluster.fake_gpus=null \
        cluster.component_placement.actor=0-7 cluster.component_placement.rollout=8-15 rollout.batch_size=8

Three groups of workers share the work: the model answers problems (``rollout``), a verifier judges the answers
(``reward``), and the model learns (``actor``).  ``cluster.component_placement`` says where they run.  What the
examples share lies in ``common/`` beside this folder: ``--sync`` ships it, with the checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for common/

from common.schema import restart_arguments
from generation_worker import GenerationWorker
from grpo_actor import GRPOActor
from placing import declared_gpus, place
from reasoning_config import SCHEMA, Configuration
from reasoning_runner import ReasoningRunner
from reward_worker import RewardWorker

from rlinf_async import Cluster, Worker, WorkerGroup
from rlinf_async.errors import ConfigError


def main(cfg: Configuration) -> None:
    with Cluster(num_nodes=cfg.cluster.num_nodes, fake_gpus=declared_gpus(cfg)) as cluster:
        placement = place(cfg, cluster)

        def launch(worker: type[Worker], name: str) -> WorkerGroup:
            restarts = restart_arguments(cfg.cluster.supervision, name)
            return worker.create_group(cfg).launch(cluster, placement.get_strategy(name), name, **restarts)

        actor, rollout = launch(GRPOActor, "actor"), launch(GenerationWorker, "rollout")
        runner = ReasoningRunner(cfg=cfg, actor=actor, rollout=rollout, reward=launch(RewardWorker, "reward"))
        runner.init_workers()
        runner.run()


def parse_arguments(arguments: list[str]) -> Configuration:
    return SCHEMA.parse(arguments, about=__doc__, default="two_terms_disaggregated")


if __name__ == "__main__":
    try:
        main(parse_arguments(sys.argv[1:]))
    except ConfigError as error:
        sys.exit(f"error: {error}")
