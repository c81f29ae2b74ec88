"""``Rollouts``: fills the experience with groups of responses, in turn with the trainer or all the time."""

from __future__ import annotations

import asyncio

from reasoning_config import Configuration
from rows import ShuffledRows
from sampler import Sampler

from rlinf_async import Experience


class Rollouts:
    """Producer of the groups that the actor learns from.

    Attributes:
        position: number of the next problem.
        skipped: groups without a signal that were replaced by others.
    """

    def __init__(
        self, cfg: Configuration, sampler: Sampler, rows: ShuffledRows, experience: Experience, position: int
    ) -> None:
        self._cfg, self._sampler, self._rows, self._experience = cfg, sampler, rows, experience
        self.position, self.skipped = position, 0
        self._oldest, self._spare = 0, 0

    def begin_step(self, version: int) -> None:
        """Begin a training step of weights of this version, which bounds the age and the number of other responses."""
        self._oldest = version - self._cfg.rollout.max_staleness
        self._spare = (self._cfg.algorithm.max_num_gen_batches - 1) * self._cfg.data.rollout_batch_size

    async def run(self) -> None:
        """Answer problem after problem until cancelled, but not while a response could only be stale."""
        in_flight = asyncio.Semaphore(self._cfg.rollout.groups_in_flight or self._cfg.data.rollout_batch_size)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await in_flight.acquire()
                await self._experience.wanted()
                task = tasks.create_task(self._answer_next())
                task.add_done_callback(lambda _: in_flight.release())

    async def fill(self) -> None:
        """Answer the problems of one training step; the groups are the same whatever order the responses come in."""
        missing = self._cfg.data.rollout_batch_size
        while missing:
            async with asyncio.TaskGroup() as tasks:
                answering = [tasks.create_task(self._answer_next()) for _ in range(missing)]
            missing -= sum(task.result() for task in answering)

    async def _answer_next(self) -> bool:
        # Return True if the group is in the experience.
        index = self.position
        self.position += 1
        size = self._cfg.algorithm.group_size
        group = await self._sampler.sample(self._rows[index], index, size, self._oldest)
        if self._spare and not group.has_signal:
            self._spare -= 1
            self.skipped += 1
            return False
        await self._experience.put(group, version=group.version, group=index)
        return True
