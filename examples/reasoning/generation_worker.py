"""Worker group ``rollout``: answers problems with the model, and takes new weights from the actor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from common.devices import pick_device
from common.generators import torch_generator
from experience import ProblemBatch, Queues, Responses
from language_model import make_policy
from reasoning_config import Configuration
from solver import Solver
from task import make_task
from tokenizer import CharacterTokenizer

from rlinf_async import Worker, follow, idempotent


class GenerationWorker(Worker):
    """Answers with the weights that it was last given."""

    def __init__(self, cfg: Configuration) -> None:
        super().__init__()
        self._cfg = cfg
        self._is_ready = False

    async def is_ready(self) -> bool:
        """Whether it was initialised: not any more, once its process was started again."""
        return self._is_ready

    async def follow_again(self) -> None:
        """Follows an actor that was started again."""
        await self._weights.close()
        self._weights = follow(self._model, of="actor")

    @idempotent
    def init_worker(self, reward_ranks: int) -> None:
        """Builds the model, from ``rollout.model.model_path`` where that is given."""
        torch.set_num_threads(1)
        cfg, device = self._cfg, pick_device(self._cfg.rollout.device)
        task = make_task(cfg.data)
        tokenizer = CharacterTokenizer.load(cfg.actor.tokenizer.tokenizer_model, task.characters)
        self._model = make_policy(cfg.rollout.model.model_path, cfg, tokenizer).to(device)
        self._solver = Solver(self._model, tokenizer, task.longest_response + 1, device)
        self._reward_ranks = reward_ranks
        self._weights = follow(self._model, of="actor")
        self._is_ready = True

    @Worker.timer("sync_model")
    async def sync_model_from_actor(self, version: int) -> None:
        """Waits until the model has these weights of the actor."""
        await self._weights.wait_version(version, timeout=120)

    async def generate(self, queues: Queues) -> None:
        """Answers batch after batch of problems until there are no more, a group of responses to each problem."""
        while (batch := await queues.problems.get()) is not None:
            async with self._weights.reading() as version:
                with self.worker_timer("generate"):
                    responses = self._respond(batch, version)
            await queues.responses.put(responses, key=batch.index % self._reward_ranks)

    @Worker.timer("answer")
    def answer(self, problems: Sequence[str]) -> list[str | None]:
        """The most likely response to each problem; None where it comes to no end."""
        return self._solver.answer(problems)

    @Worker.timer("answer")
    def sample_answers(self, problems: Sequence[str], samples: int) -> list[str | None]:
        """``samples`` responses to each problem, side by side, at the temperature of training."""
        cfg, solver = self._cfg, self._solver
        generator = torch_generator(cfg.runner.seed, self._rank, device=solver.device)
        texts: list[str | None] = []
        for at in range(0, len(problems), cfg.rollout.batch_size):
            prompts = solver.prompts(problems[at : at + cfg.rollout.batch_size])
            texts += solver.sample(prompts, samples, cfg.algorithm.temperature, generator)[1]
        return texts

    def _respond(self, batch: ProblemBatch, weight_version: int) -> Responses:
        algorithm, solver = self._cfg.algorithm, self._solver
        prompts = solver.prompts(batch.problems)
        # What is drawn depends on the batch, not on the rank that happens to take it.
        generator = torch_generator(self._cfg.runner.seed, batch.step, batch.index, device=solver.device)
        generated, texts = solver.sample(prompts, algorithm.group_size, algorithm.temperature, generator)
        return Responses(
            index=batch.index,
            prompts=prompts,
            tokens=generated.tokens,
            log_probabilities=generated.log_probabilities,
            prompt_texts=batch.problems,
            texts=texts,
            weight_version=weight_version,
        )
