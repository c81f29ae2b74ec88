"""``Sampler``: responses of the engines to a problem, with their rewards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from common.generators import torch_seed
from reasoning_config import Configuration
from responses import Group, Response
from reward_worker import RewardWorker
from rows import Row

from rlinf_async import WorkerGroup
from rlinf_async.engines import Completion, EngineGroup, Request

CheckTrainer: TypeAlias = Callable[[], Awaitable[None]]


class Sampler:
    """Asks the engines, and has the reward workers judge the answers.

    A request that fails is an error, and requests of a lost engine or reward worker go to another one: no response is
    ever empty because something went wrong.

    Args:
        check_trainer: raises if no newer weights will come; called when responses are of weights that are too old.
    """

    def __init__(
        self, cfg: Configuration, llm: EngineGroup, reward: WorkerGroup[RewardWorker], check_trainer: CheckTrainer
    ) -> None:
        self._cfg, self._llm, self._check_trainer = cfg, llm, check_trainer
        # A reward function that cannot be interrupted owes its answer for longer than all deadlines of a group.
        samples = max(cfg.algorithm.group_size, cfg.runner.eval_samples, cfg.runner.eval_interval_samples)
        self._reward = reward.any(stall_timeout=samples * cfg.reward.deadline_s + 30)
        self.reward_errors, self.last_error = 0, ""  # rewards that count as reward.error_reward
        self.stale_groups = 0  # sampled anew

    async def sample(self, row: Row, index: int, count: int, oldest: int, temperature: float = 1.0) -> Group:
        """Return ``count`` responses to a problem.

        Args:
            index: number of the problem, from which reproducible responses get their seeds.
            oldest: version that every token has, or a later one.  Older responses, of an engine that was started again
                and has not loaded the weights yet, are sampled anew.
            temperature: 0 gives the likeliest response.
        """
        rollout, seed = self._cfg.rollout, self._cfg.runner.seed
        is_seeded = rollout.reproducible and temperature > 0
        seeds = [torch_seed(seed, index, at) % 2**31 if is_seeded else None for at in range(count)]
        sampling = {"max_tokens": rollout.max_tokens, "temperature": temperature}
        while True:
            answers = self._llm.generate([Request(row.prompt, seed=each) for each in seeds], **sampling)
            completions = sorted([each async for each in answers], key=lambda completion: completion.index)
            if min(version for each in completions for version in each.versions) >= oldest:
                break
            self.stale_groups += 1
            await self._check_trainer()
        rewards = await self._judge(row, completions)
        responses = [
            Response(found.tokens, found.log_probs, found.versions, reward, found.finish_reason == "length")
            for found, reward in zip(completions, rewards, strict=True)
        ]
        return Group(index, completions[0].prompt_tokens, responses)

    async def _judge(self, row: Row, completions: Sequence[Completion]) -> list[float]:
        truncated = self._cfg.reward.truncated
        rewards = dict.fromkeys(range(len(completions)), truncated or 0.0)
        judged = [each for each in completions if truncated is None or each.finish_reason != "length"]
        if judged:
            texts, tokens = [each.text for each in judged], [each.tokens for each in judged]
            found, errors = await self._reward.judge(row.prompt, texts, tokens, row.meta)
            rewards |= dict(zip((each.index for each in judged), found, strict=True))
            self.reward_errors += len(errors)
            self.last_error = errors[-1] if errors else self.last_error
        return list(rewards.values())
