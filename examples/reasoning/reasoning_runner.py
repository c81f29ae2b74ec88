"""Training loop of the reasoning example, in the driver: warm start, steps, weight updates, evaluations."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from batches import Batches
from common.checkpoint import load_checkpoint, place_to_resume, save_checkpoint
from common.metric_logger import mean_over_ranks
from common.restarts import describe_death, is_restart_error
from experience import ProblemBatch, Queues
from omegaconf import OmegaConf
from pass_at_k import mean_pass_at_k
from problem_sets import ProblemSets
from progress import PHASES, Progress
from reasoning_config import MODEL_SIZES, Configuration, last_step, steps_per_epoch
from task import make_task

from rlinf_async import WorkerDied, WorkerGroup, each
from rlinf_async.errors import ConfigError

T = TypeVar("T")

Durations = dict[str, float]


class ReasoningRunner:
    """Trains, evaluates and keeps the records; the groups do the work.

    One training step::

        sync weights          actor ── weights ──► rollout
        generate              problems ──► rollout ── responses ──► reward ── experience ──► actor
        compute_advantages    actor
        run_training          actor

    With ``rollout.max_staleness`` 0 one follows the other.  With 1, the first two of the next step go on while the
    actor does the last two of this one: its responses come from weights that are one training step old.

    A worker that dies ends the run, unless ``cluster.supervision`` has it started again: then the responses of the step
    are made anew, and with an actor's death the run goes back to the last checkpoint.

    Args:
        cfg: a checked configuration.
        actor, rollout, reward: the launched groups.

    Raises:
        ConfigError: batch sizes do not fit each other or the numbers of ranks; too few problems.
    """

    def __init__(self, cfg: Configuration, actor: WorkerGroup, rollout: WorkerGroup, reward: WorkerGroup) -> None:
        self.cfg = cfg
        self.actor, self.rollout, self.reward = actor, rollout, reward
        self.step = 0
        self._started = time.perf_counter()
        self._last_step = last_step(cfg)
        self._experience: dict[int, tuple[Queues, int]] = {}  # of a training step: where it lies, in how many batches
        self._version = 0  # of the weights that were sent last
        self._log_path = Path(cfg.runner.logger.log_path).absolute()
        data = cfg.data
        self._sizes = Batches.of(cfg, len(actor))
        self._task = make_task(data)
        self._checkpoint = self._checkpoint_to_resume(cfg.runner.resume_dir)
        self._sets = ProblemSets.draw(
            self._task,
            data.held_out_size,
            data.selection_size,
            data.train_size,
            cfg.runner.seed,
        )

    def init_workers(self) -> None:
        """Builds models; without a model to begin with, the actor's gets its warm start, which is saved."""
        print(
            f"seed {self.cfg.runner.seed}: {len(self.actor)} actor, {len(self.rollout)} rollout and "
            f"{len(self.reward)} reward workers, {self._sizes.responses:,} responses a step",
            flush=True,
        )
        handles = [
            self.rollout.init_worker(len(self.reward)),
            self.actor.init_worker(self._sizes),
        ]
        for handle in handles:
            handle.wait()
        is_fresh = self._checkpoint is None and not self.cfg.runner.only_eval
        if is_fresh and self.cfg.actor.model.model_path is None:
            started = time.perf_counter()
            report = self.actor.warm_start(self._sets).wait()[0]
            print(
                f"warm start: {report.steps} steps of {self.cfg.actor.warm_start.batch_size} demonstrations in "
                f"{time.perf_counter() - started:.1f} s",
                flush=True,
            )
            self.actor.execute_on(0).save(self._log_path / "warm_start").wait()

    def run(self) -> dict[str, Any]:
        """Trains to the last step; evaluates before and after.

        Returns:
            The evaluation, as it stands in ``evaluation.json`` under the log path.

        Raises:
            WorkerDied: a worker of any group, whatever the others were waiting for.
        """
        self._log_path.mkdir(parents=True, exist_ok=True)
        with Progress(self._log_path, self._last_step) as progress:
            return asyncio.run(self._run(progress))

    async def _run(self, progress: Progress) -> dict[str, Any]:
        if self.cfg.runner.only_eval:
            result = await self._evaluate(progress, sampled=True)
            return self._report(result, result)
        while True:
            try:
                return await self._train_and_evaluate(progress)
            except Exception as error:
                await self._go_back(error)
            finally:
                await self._forget_experience()

    async def _train_and_evaluate(self, progress: Progress) -> dict[str, Any]:
        await self.actor.begin_training(self._checkpoint)
        await self._send_weights()
        if self._checkpoint is None:
            self._before = await self._evaluate(progress, sampled=True)
        await self._train(progress)
        await self._send_weights()
        after = await self._evaluate(progress, sampled=True)
        await self.actor.execute_on(0).save(self._log_path / "trained")
        return self._report(self._before, after)

    async def _go_back(self, error: Exception) -> None:
        """After the death of an actor, to the last checkpoint.

        Raises:
            Exception: it was none, or does not come back, or there is no checkpoint.
        """
        if not self.cfg.cluster.supervision or not await is_restart_error(error, [self.actor]):
            raise error
        print(f"step {self.step}: {describe_death(error)}: going on with what comes in its place", flush=True)
        self._checkpoint = self._checkpoint_to_resume("auto")
        if self._checkpoint is None:
            raise error
        await self.actor.init_worker(self._sizes)
        await self._lasting(self.rollout.follow_again)

    async def _lasting(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """What ``attempt`` gives, which begins anew after the death of a rollout or reward worker that comes back."""
        died = False
        while True:
            try:
                if died:
                    ready = await self.rollout.is_ready()
                    if new := [rank for rank, is_ready in enumerate(ready) if not is_ready]:
                        await self.rollout.execute_on(*new).init_worker(len(self.reward))
                return await attempt()
            except Exception as error:
                is_actors = isinstance(error, WorkerDied) and error.group == "actor"
                if is_actors or not self.cfg.cluster.supervision or not await is_restart_error(error, [self.rollout]):
                    raise
                died = True
                print(f"step {self.step}: {describe_death(error)}: going on with what comes in its place", flush=True)

    async def _forget_experience(self) -> None:
        while self._experience:
            queues, _ = self._experience.popitem()[1]
            await queues.close()

    async def _train(self, progress: Progress) -> None:
        durations: Durations = {}
        if self.step < self._last_step:
            await self._send_weights()
            durations = await self._generate_rollouts(self.step)
        if self._checkpoint is not None:
            await self.actor.catch_up()
        while self.step < self._last_step:
            started = time.perf_counter()
            following = self.step + 1
            has_more = following < self._last_step
            next_durations: Durations = {}
            if has_more and self.cfg.rollout.max_staleness:
                # They are on their way: the rollout group takes them and goes on while the actor changes its own.
                await self._send_weights()
                next_durations, learned = await self._generate_and_learn(following)
            else:
                learned = await self._learn()
                if has_more:
                    await self._send_weights()
                    next_durations = await self._generate_rollouts(following)
            self.step = following
            metrics, training = learned
            times = durations | training | {"step": time.perf_counter() - started}
            metrics |= {f"time/{tag}": times.get(tag, 0.0) for tag in (*PHASES, "step")}
            progress.log_step(self.step, metrics)
            durations = next_durations
            if self.cfg.runner.save_interval and self.step % self.cfg.runner.save_interval == 0:
                await self._save()
            interval = self.cfg.runner.eval_interval
            if interval and has_more and self.step % interval == 0:
                await self._evaluate(progress)

    async def _generate_and_learn(self, following: int) -> tuple[Durations, tuple[dict[str, float], Durations]]:
        """The experience of the next step, while the actor learns from this one's."""
        try:
            async with asyncio.TaskGroup() as tasks:
                generating = tasks.create_task(self._generate_rollouts(following))
                learning = tasks.create_task(self._learn())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return generating.result(), learning.result()

    async def _send_weights(self) -> None:
        """The actor's weights are on their way, and it may train on."""
        (self._version,) = await self.actor.execute_on(0).sync_model_to_rollout()

    async def _receive_weights(self) -> Durations:
        """Waits until the rollout group has the weights that were sent last."""
        receiving = self.rollout.sync_model_from_actor(self._version)
        await receiving
        durations: Durations = await receiving.consume_durations()
        return durations

    async def _generate_rollouts(self, step: int) -> Durations:
        return await self._lasting(lambda: self._generate(step))

    async def _generate(self, step: int) -> Durations:
        """The problems of ``step``, answered with the newest weights, judged, and laid where the actor takes them.

        While an actor rank has too few groups with a signal, as many other problems follow, ``max_num_gen_batches``
        times in all.

        Returns:
            Seconds by timer tag.
        """
        durations = await self._receive_weights()
        queues = await Queues.open(step)
        try:
            batches = await self._fill(queues, step, durations)
        except BaseException:
            await queues.close()
            raise
        self._experience[step] = queues, batches
        return durations

    async def _fill(self, queues: Queues, step: int, durations: Durations) -> int:
        """Returns the batches of experience."""
        with_signal = np.zeros(len(self.actor), dtype=int)
        for part in range(self.cfg.algorithm.max_num_gen_batches):
            for batch in [*self._problem_batches(step, part), *[None] * len(self.rollout)]:
                await queues.problems.put(batch)
            generating = self.rollout.generate(queues)
            judging = self.reward.compute_rewards(queues, self._sizes.count, len(self.actor))
            try:
                _, signals = await asyncio.gather(generating, judging)
            except BaseException:
                generating.cancel()
                judging.cancel()
                await asyncio.gather(generating, judging, return_exceptions=True)
                raise
            for handle in (generating, judging):
                for tag, seconds in (await handle.consume_durations()).items():
                    durations[tag] = durations.get(tag, 0.0) + seconds
            with_signal += np.sum(signals, axis=0)
            if with_signal.min() >= self.cfg.data.rollout_batch_size // len(self.actor):
                break
        return (part + 1) * self._sizes.count

    async def _learn(self) -> tuple[dict[str, float], Durations]:
        """One training step on the experience that lies in its channel.  Returns metrics and seconds."""
        queues, batches = self._experience[self.step]
        await self.actor.recv_rollout_batch(queues, batches)
        del self._experience[self.step]
        await queues.close()
        await self.actor.compute_advantages()
        is_linear = self.cfg.actor.optim.lr_schedule == "linear"
        training = self.actor.run_training(self.step, 1.0 - self.step / self._last_step if is_linear else 1.0)
        results = await training
        durations: Durations = await training.consume_durations()
        mean = {f"train/{name}": value for name, value in mean_over_ranks(results).items()}
        return mean, {tag: durations[tag] for tag in ("compute_advantages", "run_training")}

    async def _evaluate(self, progress: Progress, sampled: bool = False) -> dict[str, float]:
        return await self._lasting(lambda: self._evaluate_once(progress, sampled))

    async def _evaluate_once(self, progress: Progress, sampled: bool) -> dict[str, float]:
        """Accuracy on the held-out problems by the rollout group's weights: of the most likely responses.

        Args:
            sampled: also pass@k, of ``runner.eval_samples`` responses at the temperature of training.
        """
        if not self.cfg.runner.only_eval:
            await self._receive_weights()
        problems = self._sets.held_out
        shares = each(_shares(problems, len(self.rollout)))
        right = self._count_right(await self.rollout.answer(shares), 1)
        result = {"accuracy": sum(right) / len(right)}
        if sampled:
            samples = self.cfg.runner.eval_samples
            right = self._count_right(await self.rollout.sample_answers(shares, samples), samples)
            result |= {f"pass@{k}": mean_pass_at_k(right, samples, k) for k in sorted({1, min(16, samples), samples})}
        progress.log_evaluation(self.step, result, len(problems))
        return result

    def _count_right(self, answers: Sequence[Sequence[str | None]], samples: int) -> list[int]:
        """Of each held-out problem: how many of the ranks' answers, ``samples`` to each problem, are right."""
        problems = [problem for problem in self._sets.held_out for _ in range(samples)]
        verdicts = [
            self._task.is_correct(problem, answer)
            for problem, answer in zip(problems, itertools.chain(*answers), strict=True)
        ]
        return [sum(verdicts[at : at + samples]) for at in range(0, len(verdicts), samples)]

    def _problem_batches(self, step: int, part: int) -> list[ProblemBatch]:
        """The problems of a part of a training step: every epoch has all of them, in an order of its own for each part.

        They depend on nothing but the seed, the step and the part: a resumed run has the same.
        """
        epoch, place = divmod(step, steps_per_epoch(self.cfg))
        order = np.random.default_rng([self.cfg.runner.seed, epoch, part]).permutation(len(self._sets.training))
        count, size = self.cfg.data.rollout_batch_size, self.cfg.rollout.batch_size
        chosen = [self._sets.training[index] for index in order[place * count : (place + 1) * count].tolist()]
        first = part * self._sizes.count
        return [ProblemBatch(step, first + at // size, chosen[at : at + size]) for at in range(0, count, size)]

    async def _save(self) -> None:
        (state,) = await self.actor.execute_on(0).training_state()
        state |= {"step": self.step, "before": self._before}
        state["config"] = OmegaConf.to_yaml(OmegaConf.structured(self.cfg))
        save_checkpoint(self._log_path / "checkpoints", self.step, state)

    def _checkpoint_to_resume(self, resume_dir: str | None) -> dict[str, Any] | None:
        place = place_to_resume(resume_dir, self._log_path)
        return None if place is None else self._load(place)

    def _load(self, place: str | Path) -> dict[str, Any]:
        # A model that is read from a folder has the sizes that it has there.
        sizes = MODEL_SIZES if self.cfg.actor.model.model_path is None else ()
        checkpoint = load_checkpoint(place, self.cfg, ("data.task", *sizes))
        if self.cfg.algorithm.kl_beta and "reference" not in checkpoint:
            raise ConfigError(
                f"runner.resume_dir: {place} has no reference model: it was saved with algorithm.kl_beta=0, and this "
                f"run has {self.cfg.algorithm.kl_beta}: write algorithm.kl_beta=0, or begin without this checkpoint"
            )
        self.step, self._before = checkpoint["step"], checkpoint["before"]
        print(f"resuming at step {self.step} from {place}", flush=True)
        return checkpoint

    def _report(self, before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
        seconds = time.perf_counter() - self._started
        result = {
            "seed": self.cfg.runner.seed,
            "steps": self.step,
            "responses": self.step * self._sizes.responses,
            "seconds": round(seconds, 1),
            "held_out_problems": len(self._sets.held_out),
            **{f"{name}_before": value for name, value in before.items()},
            **after,
        }
        path = self._log_path / "evaluation.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
        told = [f"{name} {value:.1%}" for name, value in after.items()]
        if not self.cfg.runner.only_eval:
            told = [f"{name} {before[name]:.1%} -> {value:.1%}" for name, value in after.items()]
        print(
            f"evaluation (seed {self.cfg.runner.seed}, {self.step} steps, {seconds:.0f} s): {', '.join(told)} "
            f"on {len(self._sets.held_out)} held-out problems; saved in {path}",
            flush=True,
        )
        return result


def _shares(problems: Sequence[str], parts: int) -> list[list[str]]:
    return [[problems[index] for index in share.tolist()] for share in np.array_split(np.arange(len(problems)), parts)]
