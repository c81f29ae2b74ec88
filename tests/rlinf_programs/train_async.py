"""Asynchronous PPO with an MLP on Pendulum by RLinf's own runner and workers."""

import hydra
import torch.multiprocessing as mp
from rlinf.config import validate_cfg
from rlinf.runners.async_ppo_embodied_runner import AsyncPPOEmbodiedRunner
from rlinf.scheduler import Cluster
from rlinf.utils.placement import HybridComponentPlacement
from rlinf.workers.actor.async_ppo_fsdp_worker import AsyncPPOEmbodiedFSDPActor
from rlinf.workers.env.async_env_worker import AsyncEnvWorker
from rlinf.workers.rollout.hf.async_huggingface_worker import AsyncMultiStepRolloutWorker

mp.set_start_method("spawn", force=True)


@hydra.main(version_base="1.1", config_path=".", config_name="pendulum_ppo")
def main(cfg):
    cfg = validate_cfg(cfg)
    cluster = Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=cfg.runner.per_worker_log_path)
    placement = HybridComponentPlacement(cfg, cluster)
    groups = {}
    for name, cls in (
        ("actor", AsyncPPOEmbodiedFSDPActor),
        ("rollout", AsyncMultiStepRolloutWorker),
        ("env", AsyncEnvWorker),
    ):
        groups[name] = cls.create_group(cfg).launch(
            cluster, name=cfg[name].group_name, placement_strategy=placement.get_strategy(name)
        )
    runner = AsyncPPOEmbodiedRunner(cfg=cfg, **groups)
    runner.init_workers()
    runner.run()


if __name__ == "__main__":
    main()
