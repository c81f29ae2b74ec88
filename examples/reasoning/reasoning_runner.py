"""Training loop of the reasoning example, in the driver: warm start, steps, evaluations, checkpoints."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from checkpoints import Progress, checkpoint_to_resume, new_checkpoint, read_progress
from common.metric_logger import MetricLogger, mean_over_ranks
from common.restarts import describe_death, is_restart_error
from evaluation import evaluate
from generated_data import generate_data
from grpo_actor import GRPOActor
from omegaconf import OmegaConf
from problem_rollouts import Rollouts
from reasoning_config import Configuration, check_batches, last_step
from responses import describe
from reward_worker import RewardWorker
from rows import ShuffledRows, read_rows
from sampler import Sampler

from rlinf_async import Experience, WorkerGroup, each
from rlinf_async.engines import EngineGroup

PHASES = ("wait_for_responses", "train", "publish")
"""Parts of a training step, in seconds.  With a staleness above 0 the engines sample in all of them."""


class ReasoningRunner:
    """Trains, evaluates and keeps the records; the groups do the work.  One training step::

        engines ── responses ──► reward ── groups ──► experience ── groups ──► actor ── weights ──► engines

    With ``rollout.max_staleness`` 0 the engines answer the problems of a step, then the actor learns from them.  Above
    0 the engines sample all the time, and the actor learns from groups that are at most so many versions old.

    An engine or a reward worker that dies and is started again (``cluster.supervision``) costs nothing but time.  With
    an actor that is started again, the run goes back to the last checkpoint.

    Args:
        cfg: a checked configuration.
        actor: None where a model is only evaluated.

    Raises:
        ConfigError: batch sizes do not fit each other or the numbers of ranks; data or a checkpoint are not readable.
    """

    def __init__(self, cfg: Configuration, actor: WorkerGroup[GRPOActor] | None, reward: WorkerGroup[RewardWorker]):
        self._cfg, self._reward, self._started = cfg, reward, time.perf_counter()
        self._log_path = Path(cfg.runner.logger.log_path).absolute()
        self._data = self._log_path / "data"
        if cfg.data.train_path is None:
            generate_data(cfg, self._data)
        self._rows = read_rows(cfg.data.train_path or self._data / "train.jsonl")
        self._held_out = read_rows(cfg.data.eval_path or self._data / "eval.jsonl")
        self._last_step = last_step(cfg, len(self._rows))
        self._progress = Progress(0, 0, "", {}, OmegaConf.to_yaml(OmegaConf.structured(cfg)))
        self._responses = cfg.data.rollout_batch_size * cfg.algorithm.group_size
        self._checkpoint: Path | None = None
        if actor is not None:
            check_batches(cfg, len(actor))
            self._actor = actor
            self._go_on_from(checkpoint_to_resume(cfg, cfg.runner.resume_dir))

    def _go_on_from(self, checkpoint: Path | None) -> None:
        self._checkpoint = checkpoint
        if checkpoint is not None:
            self._progress = replace(read_progress(checkpoint, self._cfg), config=self._progress.config)
            print(f"resuming at step {self._progress.step} from {checkpoint}", flush=True)

    async def begin(self) -> str:
        """Load the model of the checkpoint or of the path, or make one; return the folder that engines start with."""
        model = str(self._checkpoint or self._cfg.actor.model.model_path or self._log_path / "initial")
        is_new = self._checkpoint is None and self._cfg.actor.model.model_path is None
        if is_new:
            await self._actor.execute_on(0).make_model(Path(model))
        await self._actor.init_worker(model)
        if is_new:
            model = str(self._log_path / "warm_start")
            await self._warm_start(Path(model))
        if self._checkpoint is None:
            self._progress = replace(self._progress, reference=model)
        return model

    async def _warm_start(self, folder: Path) -> None:
        started, steps = time.perf_counter(), self._cfg.actor.warm_start.steps
        losses = await self._actor.warm_start(self._data / "demonstrations.jsonl")
        await self._actor.save(folder)
        seconds = time.perf_counter() - started
        print(f"warm start: {steps} steps in {seconds:.1f} s, loss {losses[0]:.3f} nats a token", flush=True)

    async def run(self, llm: EngineGroup) -> dict[str, Any]:
        """Train to the last step; return the evaluation before and after, which ``evaluation.json`` has, too."""
        self._sampler = Sampler(self._cfg, llm, self._reward, self._check_actor)
        logger, wandb = self._cfg.runner.logger, None
        if logger.wandb:
            config = OmegaConf.to_container(OmegaConf.structured(self._cfg))
            wandb = {"project": logger.project, "mode": logger.wandb, "config": config}
        with MetricLogger(self._log_path, self._last_step, wandb) as self._log:
            if self._cfg.runner.only_eval:
                result = await self._evaluate(self._cfg.runner.eval_samples, oldest=0)
                return self._report(result, result)
            sizes = f"{len(self._actor)} actor, {len(llm.workers)} rollout and {len(self._reward)} reward workers"
            print(f"seed {self._cfg.runner.seed}: {sizes}, {self._responses} responses a step", flush=True)
            for attempt in itertools.count(1):
                try:
                    return await self._train_and_evaluate(f"experience {attempt}")
                except Exception as error:
                    await self._go_back(_first_of(error))
        raise AssertionError("unreachable")

    async def _check_actor(self) -> None:
        # Nobody calls an actor while the run waits for responses: its death would not be noticed.
        if not all(await self._actor.is_ready()):
            raise RuntimeError("the actor was started again, and has no weights")

    async def _go_back(self, error: Exception) -> None:
        # After the death of an actor, to the last checkpoint of this run; any other error is raised.
        if not self._cfg.cluster.supervision or not await is_restart_error(error, [self._actor]):
            raise error
        if self._checkpoint is None:
            raise error
        print(f"step {self._progress.step}: {describe_death(error)}", flush=True)
        self._go_on_from(self._checkpoint)
        await self._actor.init_worker(str(self._checkpoint))

    async def _train_and_evaluate(self, name: str) -> dict[str, Any]:
        progress, samples = self._progress, self._cfg.runner.eval_samples
        await self._actor.begin_training(progress.reference, self._checkpoint)
        # Version k + 1 of the weights is that of training step k, whatever checkpoint the run has begun with.
        await self._actor.publish_weights(progress.step + 1, wait=True)
        before = progress.before or await self._evaluate(samples, oldest=0)  # version 0 are the same weights
        self._progress = replace(progress, before=before)
        experience = await Experience.create(name, max_staleness=self._cfg.rollout.max_staleness)
        try:
            await experience.set_version(progress.step + 1)
            rows = ShuffledRows(self._rows, self._cfg.runner.seed)
            await self._train(experience, Rollouts(self._cfg, self._sampler, rows, experience, progress.position))
        finally:
            await experience.aclose(discard=True)
        after = await self._evaluate(samples, oldest=self._progress.step + 1)
        await self._actor.save(self._log_path / "trained")
        return self._report(before, after)

    async def _train(self, experience: Experience, rollouts: Rollouts) -> None:
        interval, save_interval = self._cfg.runner.eval_interval, self._cfg.runner.save_interval
        async with asyncio.TaskGroup() as tasks:
            sampling = tasks.create_task(rollouts.run()) if self._cfg.rollout.max_staleness else None
            while self._progress.step < self._last_step:
                step = self._progress.step + 1
                is_evaluated = bool(interval) and step % interval == 0 and step < self._last_step
                await self._train_step(experience, rollouts, is_evaluated)
                if save_interval and step % save_interval == 0:
                    with new_checkpoint(self._log_path, self._progress) as folder:
                        await self._actor.save(folder, with_optimizer=True)
                    self._checkpoint = checkpoint_to_resume(self._cfg, "auto")
                if is_evaluated:
                    await self._evaluate(self._cfg.runner.eval_interval_samples, oldest=step + 1)
            if sampling is not None:
                sampling.cancel()

    async def _train_step(self, experience: Experience, rollouts: Rollouts, is_evaluated: bool) -> None:
        cfg, step, times = self._cfg, self._progress.step, [time.perf_counter()]
        skipped, errors, stale = rollouts.skipped, self._sampler.reward_errors, self._sampler.stale_groups
        rollouts.begin_step(step + 1)
        if not cfg.rollout.max_staleness:
            await rollouts.fill()
        lr_factor = 1.0 - step / self._last_step if cfg.actor.optim.lr_schedule == "linear" else 1.0
        async with experience.take(groups=cfg.data.rollout_batch_size) as batch:
            times.append(time.perf_counter())
            groups = sorted(batch.items, key=lambda group: group.index)  # in an order that does not depend on time
            shares = [groups[rank :: len(self._actor)] for rank in range(len(self._actor))]
            results = await self._actor.train(each(shares), step, lr_factor)
        times.append(time.perf_counter())
        step += 1
        self._progress = replace(self._progress, step=step, position=rollouts.position)
        is_awaited = not cfg.rollout.max_staleness or is_evaluated or step == self._last_step
        await self._actor.publish_weights(step + 1, wait=is_awaited)
        await experience.set_version(step + 1)
        times.append(time.perf_counter())
        figures = {**mean_over_ranks(results), **describe(groups, version=step)}
        figures["groups_skipped"] = rollouts.skipped - skipped
        figures["groups_stale"] = self._sampler.stale_groups - stale
        figures["groups_dropped"] = sum((await experience.stats()).dropped.values())
        figures["reward_errors"] = self._sampler.reward_errors - errors
        seconds = {name: times[at + 1] - times[at] for at, name in enumerate(PHASES)} | {"step": times[-1] - times[0]}
        self._log.log({f"train/{name}": value for name, value in figures.items()}, step)
        self._log.log({f"time/{name}": value for name, value in seconds.items()}, step)
        self._log.print_step(
            step,
            f"reward {figures['reward']:.3f} | length {figures['response_length']:.1f}",
            f"entropy {figures['entropy']:.3f} | no signal {figures['groups_without_signal']:.0%}",
            f"staleness {figures['staleness']:.1f} | kl {figures['kl_to_engine']:z.4f}",
            ", ".join(f"{name} {seconds[name]:.3f} s" for name in ("step", *PHASES)),
        )
        if count := figures["reward_errors"]:
            print(f"  {count:.0f} rewards could not be computed; the last: {self._sampler.last_error}", flush=True)

    async def _evaluate(self, samples: int, oldest: int) -> dict[str, float]:
        result = await evaluate(self._sampler, self._held_out, samples, oldest, self._cfg.reward.right_from)
        self._log.log({f"eval/{name}": value for name, value in result.items()}, self._progress.step)
        told = ", ".join(f"{name} {value:.1%}" for name, value in result.items())
        print(f"step {self._progress.step}: {told} on {len(self._held_out)} held-out problems", flush=True)
        return result

    def _report(self, before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
        seconds, seed, steps = time.perf_counter() - self._started, self._cfg.runner.seed, self._progress.step
        result = {
            "seed": seed,
            "steps": steps,
            "responses": steps * self._responses,
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
        what = f"evaluation (seed {seed}, {steps} steps, {seconds:.0f} s): {', '.join(told)}"
        print(f"{what} on {len(self._held_out)} held-out problems; saved in {path}", flush=True)
        return result


def _first_of(error: Exception) -> Exception:
    # The first failure of nested task groups, whose others were cancelled for it.
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
