"""The training loop: which group does what, when."""

from __future__ import annotations

import json
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from batch_sizes import BatchSizes
from checkpoint import load_checkpoint, save_checkpoint
from configuration import last_step
from metrics import MetricLogger, mean_over_ranks, phase_seconds
from omegaconf import DictConfig, OmegaConf
from rollouts import Actions, Floats, Transitions, concatenate, split_envs, stack_steps
from seeding import evaluation_seeds, selection_seeds

from rlinf_async import WorkerGroup, each
from rlinf_async.errors import ConfigError

RETURN_WINDOW = 20
"""Episodes that the reported training return is the mean of."""


class EmbodiedRunner:
    """Trains, evaluates and keeps the records; the groups do the work.

    One training step::

        update_rollout_weights()           actor ── weights ──► rollout
        generate_rollouts()                env ── observations ──► rollout ── actions ──► env, and so on;
                                           then the experience ──► actor
        compute_advantages_and_returns()   actor
        run_training()                     actor

    What flows between groups flows through this object: the results of one call are arguments of the next.

    Args:
        cfg: a checked configuration.
        actor, rollout, env: the launched groups.

    Raises:
        ConfigError: batch sizes do not fit the numbers of ranks.
    """

    def __init__(
        self,
        cfg: DictConfig,
        actor: WorkerGroup,
        rollout: WorkerGroup,
        env: WorkerGroup,
    ) -> None:
        self.cfg = cfg
        self.actor, self.rollout, self.env = actor, rollout, env
        self.step = self.samples = 0
        self._started = time.perf_counter()
        self._sizes = BatchSizes.of(cfg, env_ranks=len(env), actor_ranks=len(actor))
        self._last_step = last_step(cfg)
        self._log_path = Path(cfg.runner.logger.log_path)
        self._returns: deque[float] = deque(maxlen=RETURN_WINDOW)

    def init_workers(self) -> None:
        """Builds simulators, policies and optimisers, from the checkpoint to resume where there is one."""
        print(
            f"{self.cfg.env.id}, seed {self.cfg.runner.seed}: {len(self.env)} env, "
            f"{len(self.rollout)} rollout and {len(self.actor)} actor workers, {self._sizes.rollout:,} samples a step",
            flush=True,
        )
        checkpoint = self._checkpoint_to_resume()
        shape = self.env.init_worker(self.step).wait()[0]
        self.rollout.init_worker(shape).wait()
        self.actor.init_worker(shape, self._sizes, checkpoint).wait()
        self._observations: Floats = np.concatenate(self.env.current_observations().wait())

    def run(self) -> dict[str, Any]:
        """Trains to the last step, or until an evaluation on the way reaches the target; then evaluates.

        Returns:
            The final evaluation, as it stands in ``evaluation.json`` under the log path.
        """
        self._log_path.mkdir(parents=True, exist_ok=True)
        with MetricLogger(self._log_path, self._last_step) as logger:
            if not self.cfg.runner.only_eval:
                self._train(logger)
                self.update_rollout_weights()
            seeds = evaluation_seeds(self.cfg.runner.eval.episodes)
            returns = self.evaluate(seeds)
            logger.log({"eval/return": float(returns.mean())}, self.step)
        return self._report(seeds, returns)

    def update_rollout_weights(self) -> None:
        """The actor's weights, to every rank of the rollout group."""
        weights = self.actor.execute_on(0).sync_model_to_rollout().wait()[0]
        self.rollout.sync_model_from_actor(weights, self.step).wait()

    def generate_rollouts(self) -> None:
        """``algorithm.rollout_steps`` steps of every simulator, and the experience to the actor."""
        observations: list[Floats] = []
        actions: list[Actions] = []
        transitions: list[Transitions] = []
        for _ in range(self.cfg.algorithm.rollout_steps):
            generated = self.rollout.generate(_share(self._observations, self.rollout))
            decided = concatenate(generated.wait())
            stepped = self.env.interact(_share(decided.actions, self.env))
            led_to = concatenate(stepped.wait())
            observations.append(self._observations)
            actions.append(decided)
            transitions.append(led_to)
            self._observations = led_to.observations
            self._returns.extend(led_to.finished_returns.tolist())
        shards = split_envs(stack_steps(observations, actions, transitions), len(self.actor))
        self.actor.recv_rollout_batch(each(shards)).wait()
        # Timers add up in the workers until somebody takes them: the last call's handle takes all.
        self._rollout_durations = [generated.consume_durations(), stepped.consume_durations()]

    def evaluate(self, seeds: list[int]) -> Floats:
        """One episode for each seed, with the rollout group's weights and no noise.  Returns ``[len(seeds)]``."""
        observations = np.concatenate(self.env.begin_evaluation(_share(np.array(seeds), self.env)).wait())
        returns = np.zeros(len(seeds), dtype=np.float64)
        running = np.ones(len(seeds), dtype=bool)
        while running.any():
            decided = concatenate(self.rollout.generate_most_likely(_share(observations, self.rollout)).wait())
            led_to = concatenate(self.env.interact_in_evaluation(_share(decided.actions, self.env)).wait())
            returns += led_to.rewards
            running &= ~(led_to.terminated | led_to.truncated)
            observations = led_to.observations
        return returns.astype(np.float32)

    def _train(self, logger: MetricLogger) -> None:
        runner = self.cfg.runner
        while self.step < self._last_step:
            started = time.perf_counter()
            self.update_rollout_weights()
            self.generate_rollouts()
            self.actor.compute_advantages_and_returns().wait()
            training = self.actor.run_training(self.step, self._lr_factor())
            metrics = {f"train/{name}": value for name, value in mean_over_ranks(training.wait()).items()}
            durations = [*self._rollout_durations, training.consume_durations()]
            seconds = time.perf_counter() - started
            self.step += 1
            self.samples += self._sizes.rollout
            metrics |= phase_seconds(durations, seconds)
            metrics["rollout/steps_per_second"] = self._sizes.rollout / seconds
            if self._returns:
                metrics["rollout/return"] = float(np.mean(self._returns))
            logger.log_step(self.step, self.samples, metrics)
            if runner.save_interval and self.step % runner.save_interval == 0:
                self._save()
            if runner.eval.interval and self.step % runner.eval.interval == 0 and self._is_solved(logger):
                break
        self._save()

    def _is_solved(self, logger: MetricLogger) -> bool:
        """Evaluates on seeds that the final evaluation does not use."""
        self.update_rollout_weights()
        returns = self.evaluate(selection_seeds(self.cfg.runner.eval.episodes))
        mean, target = float(returns.mean()), self.cfg.runner.eval.target_return
        logger.log({"eval/return_on_the_way": mean}, self.step)
        print(f"step {self.step}: evaluation on the way, mean return {mean:.1f}", flush=True)
        return target is not None and mean >= target

    def _report(self, seeds: list[int], returns: Floats) -> dict[str, Any]:
        seconds = time.perf_counter() - self._started
        result = {
            "env": self.cfg.env.id,
            "seed": self.cfg.runner.seed,
            "step": self.step,
            "samples": self.samples,
            "seconds": round(seconds, 1),
            "episodes": len(seeds),
            "mean_return": float(returns.mean()),
            "min_return": float(returns.min()),
            "returns": returns.tolist(),
            "episode_seeds": seeds,
        }
        path = self._log_path / "evaluation.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
        origin = f"training seed {self.cfg.runner.seed}, {self.samples:,} samples in {seconds:.1f} s"
        if self.cfg.runner.only_eval:
            origin = str(self.cfg.rollout.model.model_path)
        print(
            f"evaluation of {self.cfg.env.id} ({origin}): mean return {result['mean_return']:.1f}, "
            f"min {result['min_return']:.1f} over {len(seeds)} episodes with unseen seeds; saved in {path}",
            flush=True,
        )
        return result

    def _lr_factor(self) -> float:
        return 1.0 - self.step / self._last_step if self.cfg.actor.optim.lr_schedule == "linear" else 1.0

    def _save(self) -> None:
        state = self.actor.execute_on(0).training_state().wait()[0]
        state |= {"step": self.step, "samples": self.samples, "env": self.cfg.env.id}
        state["config"] = OmegaConf.to_yaml(self.cfg)
        save_checkpoint(self._log_path / "checkpoints", self.step, state)

    def _checkpoint_to_resume(self) -> dict[str, Any] | None:
        place = self.cfg.runner.resume_dir
        if place is None:
            return None
        checkpoint = load_checkpoint(place)
        if checkpoint["env"] != self.cfg.env.id:
            raise ConfigError(f"runner.resume_dir: {place} is of {checkpoint['env']}, env.id is {self.cfg.env.id}")
        self.step, self.samples = checkpoint["step"], checkpoint["samples"]
        print(f"resuming at step {self.step} from {place}", flush=True)
        return checkpoint


def _share(rows: Any, group: WorkerGroup) -> each:
    """An array → consecutive rows of it for each rank of ``group``, in rank order."""
    return each(np.array_split(rows, len(group)))
