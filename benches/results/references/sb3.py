"""PPO of Stable-Baselines3 on the task of a settings file, in an environment of its own (benches/.peers/sb3).

    python sb3.py DIR [--subproc]

DIR/settings.json has the hyperparameters (``benches.results.tasks.Settings``); the script writes DIR/tensorboard and
DIR/evaluation.json. Simulators and the final evaluation are those of ``single_file_ppo.py``; ``--subproc`` steps every
simulator in a separate process.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from single_file_ppo import RETURN_WINDOW, evaluate, make_env, read_arguments, write_evaluation


def ppo_arguments(args: Any) -> dict[str, Any]:
    """Return the keyword arguments of ``stable_baselines3.PPO`` for the settings.

    SB3's value loss lacks our factor of one half. Its schedules get the remaining part of the run after a rollout, from
    1 to 0; our linear schedule starts before the first rollout. Its early stop, at 1.5 times ``target_kl`` in any
    minibatch, stays as it is.
    """
    return {
        "n_steps": args.rollout_steps,
        "batch_size": args.minibatch_size,
        "n_epochs": args.update_epochs,
        "learning_rate": learning_rate(args.lr, args.lr_schedule, args.updates),
        "gamma": args.gamma,
        "gae_lambda": args.gae_lambda,
        "clip_range": args.clip_ratio,
        "normalize_advantage": args.normalize_advantages,
        "ent_coef": args.entropy_bonus,
        "vf_coef": 0.5 * args.value_loss_coefficient,
        "max_grad_norm": args.max_grad_norm,
        "target_kl": args.target_kl,
        "stats_window_size": RETURN_WINDOW,
        "policy_kwargs": {
            "net_arch": {"pi": list(args.hidden_sizes), "vf": list(args.hidden_sizes)},
            "log_std_init": args.initial_log_std,
            "optimizer_kwargs": {"eps": args.adam_eps},
        },
        "seed": args.seed * args.num_envs,
        "device": "cpu",
    }


def learning_rate(lr: float, schedule: str, updates: int) -> float | Callable[[float], float]:
    """Return a constant, or a function of the remaining part after a rollout, from ``1 - 1 / updates`` to 0."""
    if schedule == "constant":
        return lr
    return lambda remaining: lr * (remaining + 1.0 / updates)


def main(path: Path, subproc: bool) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

    args = read_arguments(path)
    maker = functools.partial(make_env, args.env, args.reward_scale)
    envs = (SubprocVecEnv if subproc else DummyVecEnv)([maker] * args.num_envs)
    envs = VecNormalize(envs, norm_reward=False)
    model = PPO("MlpPolicy", envs, **ppo_arguments(args))
    started = time.perf_counter()
    model.set_logger(configure(str(path / "tensorboard"), ["tensorboard"]))
    model.learn(args.updates * args.num_envs * args.rollout_steps)
    seconds = time.perf_counter() - started
    envs.close()
    returns = evaluate(
        lambda seen: model.predict(envs.normalize_obs(seen), deterministic=True)[0], args.env, args.evaluation_seeds
    )
    write_evaluation(path, args, returns, seconds, "stable-baselines3", "torch", "gymnasium", "mujoco")


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--subproc" in sys.argv[2:])
