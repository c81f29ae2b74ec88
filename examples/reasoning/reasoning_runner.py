"""Training loop of the reasoning example, in the driver: warm start, steps, weight updates, evaluations, checkpoints."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from checkpoints import Counters, checkpoint_to_resume, new_checkpoint, read_counters
from common.metric_logger import mean_over_ranks
from common.restarts import describe_death, is_restart_error
from evaluation import evaluate
from generated_data import generate_data
from grpo_actor import GRPOActor
from metrics import MetricLog
from omegaconf import OmegaConf
from reasoning_config import Configuration, check_batches, last_step
from responses import Group
from reward_worker import RewardWorker
from rollouts import Rollouts
from rows import ShuffledRows, read_rows
from sampler import Sampler

from rlinf_async import Experience, WorkerGroup, each
from rlinf_async.engines import EngineGroup

PHASES = ("wait_for_responses", "train", "publish")
"""Parts of a training step, in seconds.  With a staleness above 0 the engines sample in all of them."""


class ReasoningRunner:
    """Trains, evaluates and keeps the records; the groups do the work.

    One training step::

        engines ── responses ──► reward ── groups ──► experience ── groups ──► actor ── weights ──► engines

    With ``rollout.max_staleness`` 0 the engines answer the problems of a step, then the actor learns from them.  Above
    0 the engines sample all the time, and the actor learns from groups that are at most so many versions old.

    An engine or a reward worker that dies and is started again (``cluster.supervision``) costs nothing but time.  With
    an actor that is started again, the run goes back to the last checkpoint.

    Args:
        cfg: a checked configuration.

    Raises:
        ConfigError: batch sizes do not fit each other or the numbers of ranks; data or a checkpoint are not readable.
    """

    def __init__(self, cfg: Configuration, actor: WorkerGroup[GRPOActor] | None, reward: WorkerGroup[RewardWorker]):
        self._cfg, self._reward = cfg, reward
        self._started = time.perf_counter()
        self._log_path = Path(cfg.runner.logger.log_path).absolute()
        self._data = self._log_path / "data"
        if cfg.data.train_path is None:
            generate_data(cfg, self._data)
        self._rows = read_rows(cfg.data.train_path or self._data / "train.jsonl")
        self._held_out = read_rows(cfg.data.eval_path or self._data / "eval.jsonl")
        self._last_step = last_step(cfg, len(self._rows))
        self._checkpoint = None if actor is None else checkpoint_to_resume(cfg)
        config = OmegaConf.to_yaml(OmegaConf.structured(cfg))
        self._counters = Counters(0, 0, "", {}, config)
        if actor is not None:
            self._actor = actor
            check_batches(cfg, len(actor))
        if self._checkpoint is not None:
            self._counters = read_counters(self._checkpoint, cfg)
        self._step = self._counters.step

    async def begin(self) -> str:
        """Load the model of the checkpoint or of the path, or make one; return the folder that engines start with."""
        model = self._cfg.actor.model.model_path
        if self._checkpoint is not None:
            print(f"resuming at step {self._step} from {self._checkpoint}", flush=True)
            await self._actor.init_worker(str(self._checkpoint))
            return str(self._checkpoint)
        if model is None:
            model = await self._warm_start()
        else:
            model = (
                str(Path(model).absolute()) if Path(model).exists() else model
            )  # or a name that is in the hub's cache
            await self._actor.init_worker(model)
        self._counters = Counters(0, 0, model, {}, self._counters.config)
        return model

    async def _warm_start(self) -> str:
        started, options = time.perf_counter(), self._cfg.actor.warm_start
        initial, warm = self._log_path / "initial", self._log_path / "warm_start"
        await self._actor.execute_on(0).make_model(initial)
        await self._actor.init_worker(str(initial))
        losses = await self._actor.warm_start(self._data / "demonstrations.jsonl")
        await self._actor.save(warm)
        print(
            f"warm start: {options.steps} steps of {options.batch_size} demonstrations in "
            f"{time.perf_counter() - started:.1f} s, loss {losses[0]:.3f} nats a token",
            flush=True,
        )
        return str(warm)

    async def run(self, llm: EngineGroup) -> dict[str, Any]:
        """Train to the last step; evaluate before and after.

        Returns:
            The evaluation, as it stands in ``evaluation.json`` under the log path.

        Raises:
            WorkerDied: a worker of any group, whatever the others were waiting for.
        """
        self._sampler = Sampler(self._cfg, llm, self._reward)
        with MetricLog(self._cfg) as self._log:
            if self._cfg.runner.only_eval:
                result = await self._evaluate(self._cfg.runner.eval_samples)
                return self._report(result, result)
            ranks = len(self._actor), len(llm.workers), len(self._reward)
            responses = self._cfg.data.rollout_batch_size * self._cfg.algorithm.group_size
            print(
                f"seed {self._cfg.runner.seed}: {ranks[0]} actor, {ranks[1]} rollout and {ranks[2]} reward workers, "
                f"{responses:,} responses a step",
                flush=True,
            )
            for attempt in range(1, 1_000_000):
                try:
                    return await self._train_and_evaluate(f"experience {attempt}")
                except Exception as error:
                    await self._go_back(_first_of(error))
        raise AssertionError

    async def _go_back(self, error: Exception) -> None:
        # After the death of an actor, to the last checkpoint of this run; any other error is raised.
        if not self._cfg.cluster.supervision or not await is_restart_error(error, [self._actor]):
            raise error
        folder = self._log_path / "checkpoints" / "latest"
        if not folder.exists():
            raise error
        self._checkpoint = folder.resolve()
        self._counters = read_counters(self._checkpoint, self._cfg)
        print(f"step {self._step}: {describe_death(error)}: going back to step {self._counters.step}", flush=True)
        self._step = self._counters.step
        await self._actor.init_worker(str(self._checkpoint))

    async def _train_and_evaluate(self, name: str) -> dict[str, Any]:
        counters, samples = self._counters, self._cfg.runner.eval_samples
        await self._actor.begin_training(counters.reference, self._checkpoint)
        # Version k + 1 of the weights is that of training step k, whatever checkpoint the run has begun with.
        await self._actor.publish_weights(self._step + 1, wait=True)
        before = counters.before or await self._evaluate(samples)
        self._counters = Counters(self._step, counters.position, counters.reference, before, counters.config)
        experience = await Experience.create(name, max_staleness=self._cfg.rollout.max_staleness)
        try:
            await self._train(experience)
        finally:
            await experience.aclose(discard=True)
        after = await self._evaluate(samples)
        await self._actor.save(self._log_path / "trained")
        return self._report(before, after)

    async def _train(self, experience: Experience) -> None:
        await experience.set_version(self._step + 1)
        rows = ShuffledRows(self._rows, self._cfg.runner.seed)
        rollouts = Rollouts(self._cfg, self._sampler, rows, experience, self._counters.position)
        async with asyncio.TaskGroup() as tasks:
            sampling = tasks.create_task(rollouts.run()) if self._cfg.rollout.max_staleness else None
            while self._step < self._last_step:
                await self._train_step(experience, rollouts)
            if sampling is not None:
                sampling.cancel()

    async def _train_step(self, experience: Experience, rollouts: Rollouts) -> None:
        cfg, step, started = self._cfg, self._step, time.perf_counter()
        skipped, errors = rollouts.skipped, self._sampler.reward_errors
        rollouts.allow_replacements()
        if not cfg.rollout.max_staleness:
            await rollouts.fill(step + 1)
        is_linear = cfg.actor.optim.lr_schedule == "linear"
        async with experience.take(groups=cfg.data.rollout_batch_size) as batch:
            waited = time.perf_counter()
            groups = sorted(batch.items, key=lambda group: group.index)  # in an order that does not depend on time
            shares = [groups[rank :: len(self._actor)] for rank in range(len(self._actor))]
            results = await self._actor.train(each(shares), step, 1.0 - step / self._last_step if is_linear else 1.0)
        trained = time.perf_counter()
        self._step = step = step + 1
        interval, save_interval = cfg.runner.eval_interval, cfg.runner.save_interval
        is_evaluated = bool(interval) and step % interval == 0 and step < self._last_step
        is_awaited = not cfg.rollout.max_staleness or is_evaluated or step == self._last_step
        await self._actor.publish_weights(step + 1, wait=is_awaited)
        await experience.set_version(step + 1)
        ended = time.perf_counter()
        figures = {f"train/{name}": value for name, value in mean_over_ranks(results).items()}
        figures |= _describe(groups, version=step)
        figures["train/groups_skipped"] = rollouts.skipped - skipped
        figures["train/groups_dropped"] = sum((await experience.stats()).dropped.values())
        figures["train/reward_errors"] = self._sampler.reward_errors - errors
        phases = (waited - started, trained - waited, ended - trained)
        figures |= {f"time/{name}": seconds for name, seconds in zip(PHASES, phases, strict=True)}
        self._tell_step(figures | {"time/step": ended - started})
        if save_interval and step % save_interval == 0:
            await self._save(rollouts.position)
        if is_evaluated:
            await self._evaluate(cfg.runner.eval_interval_samples)

    def _tell_step(self, figures: dict[str, float]) -> None:
        self._log.log(self._step, figures)
        phases = ", ".join(f"{name} {figures[f'time/{name}']:.3f}" for name in PHASES)
        words = [
            f"step {self._step:>{len(str(self._last_step))}}/{self._last_step}",
            f"reward {figures['train/reward']:.3f}",
            f"length {figures['train/response_length']:.1f}",
            f"entropy {figures['train/entropy']:.3f}",
            f"no signal {figures['train/groups_without_signal']:.0%}",
            f"staleness {figures['train/staleness']:.1f}",
            f"kl {figures['train/kl_to_engine']:z.4f}",
            f"step {figures['time/step']:.3f} s: {phases}",
        ]
        print(" | ".join(words), flush=True)
        if figures["train/reward_errors"]:
            count, words = figures["train/reward_errors"], self._sampler.last_error
            print(
                f"  {count:.0f} calls of the reward function failed and count as rewards, the last: {words}", flush=True
            )

    async def _evaluate(self, samples: int) -> dict[str, float]:
        result = await evaluate(self._sampler, self._held_out, samples, self._cfg.reward.right_from)
        self._log.log(self._step, {f"eval/{name}": value for name, value in result.items()})
        told = ", ".join(f"{name} {value:.1%}" for name, value in result.items())
        print(f"step {self._step}: {told} on {len(self._held_out)} held-out problems", flush=True)
        return result

    async def _save(self, position: int) -> None:
        now = self._counters
        counters = Counters(self._step, position, now.reference, now.before, now.config)
        with new_checkpoint(self._log_path, counters) as folder:
            await self._actor.save(folder, with_optimizer=True)

    def _report(self, before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
        seconds, seed = time.perf_counter() - self._started, self._cfg.runner.seed
        result = {
            "seed": seed,
            "steps": self._step,
            "responses": self._step * self._cfg.data.rollout_batch_size * self._cfg.algorithm.group_size,
            "seconds": round(seconds, 1),
            "held_out_problems": len(self._held_out),
            **{f"{name}_before": value for name, value in before.items()},
            **after,
        }
        path = self._log_path / "evaluation.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
        told = [f"{name} {value:.1%}" for name, value in after.items()]
        if not self._cfg.runner.only_eval:
            told = [f"{name} {before[name]:.1%} -> {value:.1%}" for name, value in after.items()]
        print(
            f"evaluation (seed {seed}, {self._step} steps, {seconds:.0f} s): {', '.join(told)} "
            f"on {len(self._held_out)} held-out problems; saved in {path}",
            flush=True,
        )
        return result


def _describe(groups: list[Group], version: int) -> dict[str, float]:
    # Figures of the groups of a training step, which weights of this version learn from.
    responses = [response for group in groups for response in group.responses]
    versions = [each for response in responses for each in response.versions]
    return {
        "train/reward": sum(response.reward for response in responses) / len(responses),
        "train/groups_without_signal": sum(not group.has_signal for group in groups) / len(groups),
        "train/truncated": sum(response.is_truncated for response in responses) / len(responses),
        "train/staleness": version - sum(versions) / len(versions),
    }


def _first_of(error: Exception) -> Exception:
    # The first failure of nested task groups, whose others were cancelled for it.
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
