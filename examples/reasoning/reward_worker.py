"""Worker group ``reward``: gives each response 1 if its answer is right, 0 if not."""

from __future__ import annotations

import torch
from experience import Experience, Queues, Responses
from grpo import has_signal
from reasoning_config import Configuration
from task import make_task
from torch import Tensor

from rlinf_async import Worker


class RewardWorker(Worker):
    """Rewards a response with 1 if it is right, and with 0 if not."""

    def __init__(self, cfg: Configuration) -> None:
        super().__init__()
        self._group_size = cfg.algorithm.group_size
        self._task = make_task(cfg.data)

    async def compute_rewards(self, queues: Queues, batches: int, actor_ranks: int) -> list[int]:
        """Judges this rank's share of ``batches`` batches of responses, for the actor.

        Returns:
            Groups with a signal, for each actor rank.
        """
        signals = [0] * actor_ranks
        for _ in range(self._rank, batches, self._world_size):
            responses = await queues.responses.get(key=self._rank)
            with self.worker_timer("judge"):
                experience = Experience(responses, self._judge(responses))
            actor_rank = responses.index % actor_ranks
            signals[actor_rank] += int(has_signal(experience.rewards).sum())
            await queues.experience.put(experience, key=actor_rank)
        return signals

    def _judge(self, responses: Responses) -> Tensor:
        groups = torch.arange(len(responses.texts)) // self._group_size
        right = [
            self._task.is_correct(responses.prompt_texts[problem], text)
            for problem, text in zip(groups.tolist(), responses.texts, strict=True)
        ]
        return torch.tensor(right, dtype=torch.float32).view(-1, self._group_size)
