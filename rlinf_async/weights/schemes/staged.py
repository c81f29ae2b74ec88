"""An update on its way to its workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from rlinf_async.errors import DeadlineExceeded
from rlinf_async.weights.schemes.updates import Update
from rlinf_async.weights.schemes.ways import Way
from rlinf_async.weights.state.report import Ack, SyncReport


class Staged:
    """An update that is on its way.

    Attributes:
        since, t_stage: when it was begun (``perf_counter``), and the seconds until its source could change.
    """

    def __init__(self, update: Update, ways: Sequence[Way], since: float) -> None:
        self.update = update
        self.since = since
        self.t_stage = 0.0
        self._ways = ways
        self._acks: dict[int, Ack] = {}

    @property
    def missing(self) -> list[int]:
        return [worker_id for way in self._ways for worker_id in way.worker_ids if worker_id not in self._acks]

    def give_up(self) -> None:
        give_up(self._ways)

    async def report(self) -> SyncReport:
        """Waits for all workers; if that is cancelled, it may be called again.

        Raises:
            WrongAcknowledgement: a worker has said something else; it may be waited for again.
        """

        async def collect(way: Way) -> None:
            self._acks.update(await way.acks(self.update))

        waiting = [way for way in self._ways if any(worker_id not in self._acks for worker_id in way.worker_ids)]
        try:
            async with asyncio.TaskGroup() as tasks:
                for way in waiting:
                    tasks.create_task(collect(way))
        except BaseExceptionGroup as group:  # a failed worker is an Ack: this is a word that nobody expected
            raise group.exceptions[0] from None
        return SyncReport(
            version=self.update.version,
            per_worker={worker_id: self._acks[worker_id] for way in self._ways for worker_id in way.worker_ids},
            bytes=max((way.nbytes for way in self._ways), default=0),
            t_stage=self.t_stage,
            t_total=time.perf_counter() - self.since,
        )

    async def report_within(self, timeout: float | None) -> SyncReport:
        """The same, for so many seconds.

        Raises:
            DeadlineExceeded: somebody has not answered in that time; it may be waited for again.
        """
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                return await self.report()
        except TimeoutError:
            if not deadline.expired():
                raise
            raise DeadlineExceeded(
                f"version {self.update.version} of '{self.update.model_id}' was not applied within {timeout:g} s by "
                f"workers {', '.join(map(str, self.missing))}; it is still pending"
            ) from None


def give_up(ways: Sequence[Way]) -> None:
    for way in ways:
        way.give_up()
