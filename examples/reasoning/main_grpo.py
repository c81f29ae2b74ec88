"""Trains a language model with GRPO on problems with a verifier.

    python main_grpo.py                                      the default: two_terms_disaggregated
    python main_grpo.py --config countdown_disaggregated     a file in config/math/, or a path to one
    python main_grpo.py rollout.engine=vllm runner.seed=1 algorithm.group_size=16      overrides, by their dotted names
    rlinf-launch --hosts nodes.txt --sync main_grpo.py cluster.num_nodes=2 cluster.fake_gpus=null \
        cluster.component_placement.actor=0-7 cluster.component_placement.rollout=8-15

Three groups of workers share the work: engines answer problems (``rollout``), a reward function judges the answers
(``reward``), and the model learns (``actor``).  ``cluster.component_placement`` says where they run.  ``--sync`` ships
the checkout, with ``common/`` beside this folder.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for common/

from common.schema import restart_arguments
from grpo_actor import GRPOActor
from placing import declared_gpus, place
from reasoning_config import SCHEMA, Configuration
from reasoning_runner import ReasoningRunner
from reward_worker import RewardWorker, load_function

from rlinf_async import Cluster
from rlinf_async.engines import EngineGroup
from rlinf_async.errors import ConfigError


async def main(cfg: Configuration) -> None:
    function = cfg.reward.function or f"{cfg.data.task}.reward"
    load_function(function)  # an error here is told once, without the traceback of a worker
    async with Cluster(num_nodes=cfg.cluster.num_nodes, fake_gpus=declared_gpus(cfg)) as cluster:
        placement, is_trained, actor = place(cfg, cluster), not cfg.runner.only_eval, None

        def launch(spec: Any, name: str, **options: Any) -> Any:
            options |= restart_arguments(cfg.cluster.supervision, name)
            return spec.launch(cluster, placement.get_strategy(name), name=name, **options)

        reward = launch(RewardWorker.create_group(cfg.reward, function), "reward")
        if is_trained:
            actor = launch(GRPOActor.create_group(cfg), "actor")
        runner = ReasoningRunner(cfg, actor, reward)
        model = await runner.begin() if is_trained else str(cfg.rollout.model.model_path)
        engine = cfg.rollout.engine
        llm = launch(
            EngineGroup(engine, model=model, **cfg.rollout.options.get(engine, {})),
            "rollout",
            follow="actor" if is_trained else None,
            on_update=cfg.rollout.on_update,
            stall_timeout=cfg.rollout.stall_timeout,
            env=dict(cfg.rollout.env),
            seed=cfg.runner.seed,
        )
        await runner.run(await llm)


if __name__ == "__main__":
    try:
        asyncio.run(main(SCHEMA.parse(sys.argv[1:], about=__doc__, default="two_terms_disaggregated")))
    except ConfigError as error:
        sys.exit(f"error: {error}")
