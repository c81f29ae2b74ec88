"""Training loop of the embodiment example, in the driver: steps, evaluations, checkpoints, metrics."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from batch_sizes import BatchSizes
from common.checkpoint import load_checkpoint, place_to_resume, save_checkpoint
from common.metric_logger import mean_over_ranks
from common.restarts import describe_death, is_restart_error
from configuration import Configuration, last_step
from env_worker import FinishedEpisode
from metrics import EmbodiedLogger, phase_seconds
from omegaconf import OmegaConf
from pipeline import Layout, Queues
from rollouts import Floats
from seeding import evaluation_seeds, selection_seeds

from rlinf_async import Handle, WorkerGroup, each

T = TypeVar("T")

EPISODE_WINDOW = 20
"""Number of episodes in the reported mean return and length."""


@dataclass(frozen=True)
class _Rollout:
    """Pending calls that produce the experience of one training step."""

    env: Handle
    inference: Handle | None

    @property
    def handles(self) -> list[Handle]:
        return [self.env] if self.inference is None else [self.env, self.inference]


class EmbodiedRunner:
    """Runs the training loop, evaluations and checkpoints; the groups do the work.

    One training step::

        sync_model_to_rollout()            actor ── weights ──► env, or rollout
        interact()                         simulators step, the policy decides; then env ── experience ──► actor
        compute_advantages_and_returns()   actor
        run_training()                     actor

    With ``runner.mode: async``, the runner requests the rollouts of the next ``algorithm.max_staleness`` steps before
    the actor learns, and simulators and inference continue with the weights that they have. The experience queue drops
    samples above this staleness, but none gets there.

    A dead worker ends the run, unless ``cluster.supervision`` restarts it: then the training step starts again.

    Args:
        cfg: a checked configuration without open choices (:func:`defaults.fill_in`).
        actor, env: the launched groups.
        rollout: the inference group; None if env workers do inference.

    Raises:
        ConfigError: batch sizes do not fit the numbers of ranks.
    """

    def __init__(self, cfg: Configuration, actor: WorkerGroup, env: WorkerGroup, rollout: WorkerGroup | None) -> None:
        self.cfg = cfg
        self.actor, self.env, self.rollout = actor, env, rollout
        self.step = self.samples = self._samples_before = 0
        self._is_trained = cfg.runner.only_eval
        self._version = 0
        """Version of the weights that were sent last."""
        self._started = time.perf_counter()
        self._training_seconds = 0.0
        self._sizes = BatchSizes.of(cfg, env_ranks=len(env), actor_ranks=len(actor))
        self._layout = Layout(
            len(env), 1 if rollout is None else len(rollout), len(actor), cfg.rollout.pipeline_stage_num
        )
        self._last_step = last_step(cfg)
        self._ahead = cfg.algorithm.max_staleness if cfg.runner.mode == "async" else 0
        self._log_path = Path(cfg.runner.logger.log_path)
        self._episodes: deque[tuple[float, int]] = deque(maxlen=EPISODE_WINDOW)
        """Returns and lengths of finished episodes."""
        self._checkpoint: str | Path | None = None
        """This run's last checkpoint; at first, the one to resume. The log path may have an earlier run's."""

    def init_workers(self) -> None:
        """Build simulators, policies and optimisers, from the checkpoint to resume if there is one."""
        cfg, threads = self.cfg, self.cfg.actor.threads
        rollout = "inference in the env workers" if self.rollout is None else f"{len(self.rollout)} rollout workers"
        print(
            f"{cfg.env.id}, seed {cfg.runner.seed}, {cfg.runner.mode}: {len(self.env)} env workers, {rollout}, "
            f"{len(self.actor)} actor workers of {threads} thread{'s' * (threads > 1)}, "
            f"{self._sizes.rollout:,} samples a step",
            flush=True,
        )
        self._checkpoint = place_to_resume(cfg.runner.resume_dir, self._log_path)
        checkpoint = self._last_checkpoint()
        states = None if checkpoint is None else checkpoint.pop("simulators")
        self._shape = self.env.init_worker(self.step, self._layout, states).wait()[0]
        if self.rollout is not None:
            self.rollout.init_worker(self._shape, self._layout).wait()
        self.actor.init_worker(self._shape, self._sizes, self._layout, checkpoint).wait()

    def run(self) -> dict[str, Any]:
        """Train to the last step, or until an evaluation reaches the target; then evaluate.

        Returns:
            The final evaluation, also written to ``evaluation.json`` under the log path.

        Raises:
            WorkerDied: a worker of any group died, whatever the others were waiting for.
        """
        self._log_path.mkdir(parents=True, exist_ok=True)
        with EmbodiedLogger(self._log_path, self._last_step) as logger:
            return asyncio.run(self._run(logger))

    async def _run(self, logger: EmbodiedLogger) -> dict[str, Any]:
        self._queues = await self._open_queues()
        try:
            return await self._train_and_evaluate(logger)
        finally:
            await self._queues.close()

    async def _open_queues(self) -> Queues:
        return await Queues.open(self._layout, self._ahead)

    async def _train_and_evaluate(self, logger: EmbodiedLogger) -> dict[str, Any]:
        seeds = evaluation_seeds(self.cfg.runner.eval.episodes)
        if not self.cfg.runner.only_eval:
            await self._lasting(self._send_weights)
        returns = await self._lasting(lambda: self._finish(logger, seeds))
        logger.log({"eval/return": float(returns.mean())}, self.samples)
        result = self._report(seeds, returns)
        if self.cfg.runner.video:
            video = self._log_path.absolute() / "video.mp4"
            await self._evaluate(seeds[:1], video)
            print(f"video of the first episode: {video}", flush=True)
        return result

    async def _finish(self, logger: EmbodiedLogger, seeds: list[int]) -> Floats:
        """Make the remaining training steps, and evaluate."""
        if not self._is_trained:
            started = time.perf_counter()
            try:
                await self._train(logger)
            finally:
                self._training_seconds += time.perf_counter() - started
            self._is_trained = True
        if not self.cfg.runner.only_eval:
            await self._save()
        return await self._evaluate(seeds)

    async def _lasting(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``attempt``; repeat it after the death of a worker that is restarted."""
        while True:
            try:
                return await attempt()
            except Exception as error:
                await self._recover(error)

    async def _recover(self, error: Exception) -> None:
        """Recover from a death: drop the work under way, which will be done again.

        Restarted env and rollout workers are initialised again, and start new episodes. A restarted actor group, and
        the run with it, goes back to the last checkpoint.

        Raises:
            Exception: no worker was restarted, or is about to be.
        """
        groups = [group for group in (self.actor, self.env, self.rollout) if group is not None]
        while self.cfg.cluster.supervision and await is_restart_error(error, groups):
            print(f"step {self.step}: {describe_death(error)}: going on with what comes in its place", flush=True)
            try:
                await self._queues.close()
                self._queues = await self._open_queues()
                if actor_is_new := not all(await self.actor.is_ready()):
                    checkpoint = self._last_checkpoint()
                    if checkpoint is None:
                        self.step = self.samples = self._samples_before = 0
                        self._episodes.clear()
                    else:
                        del checkpoint["simulators"]
                    self._is_trained = self.cfg.runner.only_eval
                    await self.actor.init_worker(self._shape, self._sizes, self._layout, checkpoint)
                await self._renew(self.env, self.step, actor_is_new=actor_is_new)
                if self.rollout is not None:
                    await self._renew(self.rollout, self._shape, actor_is_new=actor_is_new)
                if not self.cfg.runner.only_eval:
                    await self._send_weights()
                return
            except Exception as another:
                error = another
        raise error

    async def _renew(self, group: WorkerGroup, about: Any, *, actor_is_new: bool) -> None:
        """Initialise the restarted ranks; if the actor is among them, the other groups follow the new one."""
        ready = await group.is_ready()
        if actor_is_new and (old := [rank for rank, is_ready in enumerate(ready) if is_ready]):
            await group.execute_on(*old).follow_again()
        if new := [rank for rank, is_ready in enumerate(ready) if not is_ready]:
            await group.execute_on(*new).init_worker(about, self._layout)

    async def _train(self, logger: EmbodiedLogger) -> None:
        runner = self.cfg.runner
        rollouts: deque[_Rollout] = deque()
        receiving: list[Handle] = []
        try:
            while self.step < self._last_step:
                started = time.perf_counter()
                while len(rollouts) <= min(self._ahead, self._last_step - self.step - 1):
                    rollouts.append(self._roll_out(self.step + len(rollouts)))
                receiving = [self.actor.recv_rollout_batch(self._queues)]
                metrics, durations = await self._receive(rollouts[0], receiving[0])
                rollouts.popleft()
                learned, training = await self._learn()
                metrics |= learned
                await self._send_weights()
                seconds = time.perf_counter() - started
                self.step += 1
                self.samples += self._sizes.rollout
                metrics |= phase_seconds([*durations, training], seconds)
                metrics["rollout/steps_per_second"] = self._sizes.rollout / seconds
                logger.log_step(self.step, self.samples, metrics)
                if runner.save_interval and self.step % runner.save_interval == 0:
                    await self._save()
                is_due = runner.eval.interval and self.step % runner.eval.interval == 0
                if is_due and await self._is_solved(logger):
                    break
            # The target was reached before the last step, so nothing learns from these rollouts.
            for rollout in rollouts:
                await asyncio.gather(*rollout.handles)
        except BaseException:
            open_calls = [*receiving, *(handle for rollout in rollouts for handle in rollout.handles)]
            for handle in open_calls:
                handle.cancel()
            await asyncio.gather(*open_calls, return_exceptions=True)
            raise

    async def _send_weights(self) -> None:
        """Publish the actor's weights; return as soon as the actor may train on."""
        (self._version,) = await self.actor.execute_on(0).sync_model_to_rollout()

    def _roll_out(self, step: int) -> _Rollout:
        """Start the rollout of training step ``step``, with the weights that were sent last, or later ones."""
        inference = None if self.rollout is None else self.rollout.generate(self._queues, step, self._version)
        return _Rollout(self.env.interact(self._queues, step, self._version), inference)

    async def _receive(self, rollout: _Rollout, receiving: Handle) -> tuple[dict[str, float], list[dict[str, float]]]:
        """Pass the experience of a rollout to the actor. Return metrics and timers.

        All groups are awaited together: if a worker of one dies, the others wait for it and would never finish.
        """
        started = time.perf_counter()
        episodes, staleness, *_ = await asyncio.gather(rollout.env, receiving, *rollout.handles[1:])
        seconds = time.perf_counter() - started
        finished = sorted((episode for rank in episodes for episode in rank), key=_by_step)
        self._episodes.extend((episode.total, episode.length) for episode in finished)
        metrics = {"rollout/staleness": float(np.mean(staleness))}
        if self._episodes:
            metrics["rollout/return"], metrics["rollout/episode_length"] = map(float, np.mean(self._episodes, axis=0))
        durations = [await handle.consume_durations() for handle in rollout.handles]
        return metrics, [{"generate_rollouts": seconds}, *durations]

    async def _learn(self) -> tuple[dict[str, float], dict[str, float]]:
        """Make one training step on the actor's experience. Return metrics and timers."""
        advantages = self.actor.compute_advantages_and_returns()
        await advantages
        training = self.actor.run_training(self.step, self._lr_factor())
        metrics = {f"train/{name}": value for name, value in mean_over_ranks(await training).items()}
        return metrics, await advantages.consume_durations() | await training.consume_durations()

    async def _evaluate(self, seeds: list[int], video: Path | None = None) -> Floats:
        """Run one episode per seed, without noise, and film it if asked to. Return ``[len(seeds)]``."""
        handles = [self.env.evaluate(each(np.array_split(seeds, len(self.env))), self._queues, self._version, video)]
        if self.rollout is not None:
            handles.append(self.rollout.generate_most_likely(self._queues, self._version))
        returns, *_ = await asyncio.gather(*handles)
        return np.concatenate(returns)

    async def _is_solved(self, logger: EmbodiedLogger) -> bool:
        """Evaluate on seeds that the final evaluation does not use."""
        returns = await self._evaluate(selection_seeds(self.cfg.runner.eval.episodes))
        mean, target = float(returns.mean()), self.cfg.runner.eval.target_return
        logger.log({"eval/return_on_the_way": mean}, self.samples)
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
            "training_seconds": round(self._training_seconds, 2),
            "samples_per_second": round(self._samples_per_second()),
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

    def _samples_per_second(self) -> float:
        """Samples per second of the training loop, evaluations included; 0 if nothing was trained."""
        return (self.samples - self._samples_before) / self._training_seconds if self._training_seconds else 0.0

    def _lr_factor(self) -> float:
        return 1.0 - self.step / self._last_step if self.cfg.actor.optim.lr_schedule == "linear" else 1.0

    async def _save(self) -> None:
        """Write a checkpoint after the rollouts that were requested ahead; a resumed run makes these again."""
        (state,), simulators = await asyncio.gather(
            self.actor.execute_on(0).training_state(), self.env.simulator_states()
        )
        state |= {"step": self.step, "samples": self.samples}
        state["episodes"] = list(self._episodes)
        state["simulators"] = [state for rank in simulators for state in rank]
        state["config"] = OmegaConf.to_yaml(OmegaConf.structured(self.cfg))
        self._checkpoint = save_checkpoint(self._log_path / "checkpoints", self.step, state)

    def _last_checkpoint(self) -> dict[str, Any] | None:
        return None if self._checkpoint is None else self._load(self._checkpoint)

    def _load(self, place: str | Path) -> dict[str, Any]:
        checkpoint = load_checkpoint(place, self.cfg, ("env.id", "env.total_num_envs", "actor.model.hidden_sizes"))
        self.step, self.samples = checkpoint["step"], checkpoint["samples"]
        self._samples_before = self.samples
        self._episodes.clear()
        self._episodes.extend(checkpoint["episodes"])
        print(f"resuming at step {self.step} from {place}", flush=True)
        return checkpoint


def _by_step(episode: FinishedEpisode) -> int:
    return episode.step
