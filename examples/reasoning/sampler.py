"""``Sampler``: responses of the engines to a problem, with their rewards."""

from __future__ import annotations

from collections.abc import Sequence

from common.generators import torch_seed
from reasoning_config import Configuration
from responses import Group, Response
from reward_worker import RewardWorker, Verdicts
from rows import Row

from rlinf_async import WorkerGroup
from rlinf_async.engines import Completion, EngineGroup, Request


class Sampler:
    """Asks the engines, and has the reward workers judge what they answer.

    A request that fails is an error, and what a lost engine or reward worker had is asked again of another one: no
    response is ever empty because something went wrong.

    Attributes:
        reward_errors: number of calls of the reward function that counted as ``reward.error_reward``.
        last_error: the words of the last of them.
    """

    def __init__(self, cfg: Configuration, llm: EngineGroup, reward: WorkerGroup[RewardWorker]) -> None:
        self._cfg, self._llm = cfg, llm
        # A reward function that cannot be interrupted owes its answer for longer than all deadlines of a group.
        samples = max(cfg.algorithm.group_size, cfg.runner.eval_samples, cfg.runner.eval_interval_samples)
        self._reward = reward.any(stall_timeout=samples * cfg.reward.deadline_s + 30)
        self.reward_errors = 0
        self.last_error = ""

    async def sample(self, row: Row, index: int, count: int, temperature: float = 1.0) -> Group:
        """Return ``count`` responses to a problem.

        Args:
            index: number of the problem, from which reproducible responses get their seeds.
            temperature: 0 gives the likeliest response.

        Raises:
            RewardFailed: the reward function failed, and that is no number by ``reward.on_error``.
            ValueError: the model cannot take the prompt.
        """
        rollout, seed = self._cfg.rollout, self._cfg.runner.seed
        seeds = [torch_seed(seed, index, at) % 2**31 if rollout.reproducible else None for at in range(count)]
        requests = [
            Request(row.prompt, max_tokens=rollout.max_tokens, temperature=temperature, seed=each) for each in seeds
        ]
        completions = {completion.index: completion async for completion in self._llm.generate(requests)}
        rewards = await self._judge(row, [completions[at] for at in range(count)])
        responses = [
            Response(found.tokens, found.log_probs, found.versions, rewards[at], found.finish_reason == "length")
            for at, found in sorted(completions.items())
        ]
        return Group(index, completions[0].prompt_tokens, responses)

    async def _judge(self, row: Row, completions: Sequence[Completion]) -> list[float]:
        truncated = self._cfg.reward.truncated
        judged = [each for each in completions if truncated is None or each.finish_reason != "length"]
        texts, tokens = [each.text for each in judged], [each.tokens for each in judged]
        verdicts: Verdicts = await self._reward.judge(row.prompt, texts, tokens, row.meta) if judged else Verdicts()
        self.reward_errors += len(verdicts.errors)
        self.last_error = (verdicts.errors or [self.last_error])[-1]
        found = dict(zip(map(id, judged), verdicts.rewards, strict=True))
        return [found.get(id(each), truncated or 0.0) for each in completions]
