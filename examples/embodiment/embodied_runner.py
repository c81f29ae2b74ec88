"""Training loop of the embodiment example, in the driver: steps, evaluations, checkpoints, metrics."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from batch_sizes import BatchSizes
from common.checkpoint import load_checkpoint, save_checkpoint
from common.metric_logger import mean_over_ranks
from configuration import last_step
from metrics import EmbodiedLogger, phase_seconds
from omegaconf import DictConfig, OmegaConf
from pipeline import Layout, Queues
from rollouts import Floats
from seeding import evaluation_seeds, selection_seeds

from rlinf_async import Channel, Handle, WorkerGroup, each
from rlinf_async.errors import ConfigError

RETURN_WINDOW = 20
"""Episodes that the reported training return is the mean of."""


class EmbodiedRunner:
    """Trains, evaluates and keeps the records; the groups do the work.

    One training step::

        update_rollout_weights()           actor ── weights ──► rollout
        generate_rollouts()                env ── observations ──► rollout ── actions ──► env, and so on;
                                           then env ── experience ──► actor
        compute_advantages_and_returns()   actor
        run_training()                     actor

    A rollout flows through queues between the groups (see :mod:`pipeline`); this object only waits for its end.

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
        self._layout = Layout(len(env), len(rollout), len(actor), cfg.rollout.pipeline_stage_num)
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
        shape = self.env.init_worker(self.step, self._layout).wait()[0]
        self.rollout.init_worker(shape, self._layout).wait()
        self.actor.init_worker(shape, self._sizes, self._layout, checkpoint).wait()

    def run(self) -> dict[str, Any]:
        """Trains to the last step, or until an evaluation on the way reaches the target; then evaluates.

        Returns:
            The final evaluation, as it stands in ``evaluation.json`` under the log path.

        Raises:
            WorkerDied: a worker of any group, whatever the others were waiting for.
        """
        self._log_path.mkdir(parents=True, exist_ok=True)
        with (
            EmbodiedLogger(self._log_path, self._last_step) as logger,
            Channel.create("observations", distributed=True) as observations,
            Channel.create("actions", distributed=True) as actions,
            Channel.create("experience", distributed=True) as experience,
        ):
            self._queues = Queues(observations, actions, experience)
            if not self.cfg.runner.only_eval:
                self._train(logger)
                self.update_rollout_weights()
            seeds = evaluation_seeds(self.cfg.runner.eval.episodes)
            returns = self.evaluate(seeds)
            logger.log({"eval/return": float(returns.mean())}, self.step)
        return self._report(seeds, returns)

    def update_rollout_weights(self, overlap: bool = False) -> None:
        """The actor's weights, to every rank of the rollout group.

        Args:
            overlap: do not wait until they are there.
        """
        self._version = self.actor.execute_on(0).sync_model_to_rollout(overlap).wait()[0]
        self.rollout.begin_step(self.step).wait()

    def generate_rollouts(self) -> None:
        """``algorithm.rollout_steps`` steps of every simulator, and the experience to the actor."""
        started = time.perf_counter()
        env_handle = self.env.interact(self._queues)
        rollout_handle = self.rollout.generate(self._queues)
        actor_handle = self.actor.recv_rollout_batch(self._queues)
        episodes, versions, _ = _wait_for_all(env_handle, rollout_handle, actor_handle)
        self._staleness = _mean_staleness(self._version, versions)
        finished = sorted((episode for rank in episodes for episode in rank), key=lambda episode: episode.step)
        self._returns.extend(episode.total for episode in finished)
        seconds = time.perf_counter() - started
        self._rollout_durations = [
            {"generate_rollouts": seconds},
            env_handle.consume_durations(),
            rollout_handle.consume_durations(),
        ]

    def evaluate(self, seeds: list[int]) -> Floats:
        """One episode for each seed, with the rollout group's weights and no noise.  Returns ``[len(seeds)]``."""
        shares = each(np.array_split(seeds, len(self.env)))
        returns, _ = _wait_for_all(
            self.env.evaluate(shares, self._queues), self.rollout.generate_most_likely(self._queues)
        )
        return np.concatenate(returns)

    def _train(self, logger: EmbodiedLogger) -> None:
        runner = self.cfg.runner
        while self.step < self._last_step:
            started = time.perf_counter()
            self.update_rollout_weights(self.cfg.rollout.overlap_weight_sync)
            self.generate_rollouts()
            self.actor.compute_advantages_and_returns().wait()
            training = self.actor.run_training(self.step, self._lr_factor())
            metrics = {f"train/{name}": value for name, value in mean_over_ranks(training.wait()).items()}
            durations = [*self._rollout_durations, training.consume_durations()]
            seconds = time.perf_counter() - started
            self.step += 1
            self.samples += self._sizes.rollout
            metrics |= phase_seconds(durations, seconds)
            metrics["rollout/staleness"] = self._staleness
            metrics["rollout/steps_per_second"] = self._sizes.rollout / seconds
            if self._returns:
                metrics["rollout/return"] = float(np.mean(self._returns))
            logger.log_step(self.step, self.samples, metrics)
            if runner.save_interval and self.step % runner.save_interval == 0:
                self._save()
            if runner.eval.interval and self.step % runner.eval.interval == 0 and self._is_solved(logger):
                break
        self._save()

    def _is_solved(self, logger: EmbodiedLogger) -> bool:
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


def _mean_staleness(newest: int, versions: Sequence[Mapping[int, int]]) -> float:
    """By how many versions the weights that decided on the actions were behind, over all ranks' actions."""
    behind = sum((newest - version) * count for rank in versions for version, count in rank.items())
    return behind / sum(sum(rank.values()) for rank in versions)


def _wait_for_all(*handles: Handle) -> list[Any]:
    """Their results; the first error of any of them, and then the others are cancelled.

    Groups that exchange through queues must be waited for together: when a worker of one dies, those of another wait
    for it, and will not come to an end by themselves.
    """

    async def wait() -> list[Any]:
        return await asyncio.gather(*handles)

    return asyncio.run(wait())
