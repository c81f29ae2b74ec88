"""PPO or SAC with an MLP on Pendulum by RLinf's own runner, workers and environment wrapper."""

import hydra
import torch.multiprocessing as mp
from rlinf.config import validate_cfg
from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.scheduler import Cluster
from rlinf.utils.placement import HybridComponentPlacement
from rlinf.workers.env.env_worker import EnvWorker
from rlinf.workers.rollout.hf.huggingface_worker import MultiStepRolloutWorker

mp.set_start_method("spawn", force=True)


@hydra.main(version_base="1.1", config_path=".", config_name="pendulum_ppo")
def main(cfg):
    cfg = validate_cfg(cfg)
    cluster = Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=cfg.runner.per_worker_log_path)
    placement = HybridComponentPlacement(cfg, cluster)
    if cfg.algorithm.loss_type == "embodied_sac":
        from rlinf.workers.actor.fsdp_sac_policy_worker import EmbodiedSACFSDPPolicy as Actor
    else:
        from rlinf.workers.actor.fsdp_actor_worker import EmbodiedFSDPActor as Actor

    actor = Actor.create_group(cfg).launch(
        cluster, name=cfg.actor.group_name, placement_strategy=placement.get_strategy("actor")
    )
    rollout = MultiStepRolloutWorker.create_group(cfg).launch(
        cluster, name=cfg.rollout.group_name, placement_strategy=placement.get_strategy("rollout")
    )
    env = EnvWorker.create_group(cfg).launch(
        cluster, name=cfg.env.group_name, placement_strategy=placement.get_strategy("env")
    )
    runner = EmbodiedRunner(cfg=cfg, actor=actor, rollout=rollout, env=env)
    runner.init_workers()
    runner.run()


if __name__ == "__main__":
    main()
