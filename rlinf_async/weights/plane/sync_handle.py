"""``SyncHandle``: the handle of one weight update, with its acknowledgements, deadline, report and deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._waits import slow_waits
from rlinf_async.errors import ClosedError
from rlinf_async.weights.state.sync_report import SyncReport
from rlinf_async.work import Work


class WeightsMessage(NamedTuple):
    """One version of the weights, as a message.

    Attributes:
        timeout: seconds within which receivers must answer; None for no limit.
    """

    model_id: str
    version: int
    weights: Any
    timeout: float | None


class Delivery(Protocol):
    """The delivery of a message to one receiver, or to several in one call."""

    @property
    def names(self) -> Sequence[Hashable]:
        """Names of the receivers."""

    @property
    def has_begun(self) -> bool:
        """True if a receiver may know the version, so that its number cannot be used again."""

    @property
    def nbytes(self) -> int:
        """Size in bytes of the weights as sent; 0 if unknown."""

    async def stage(self, parcel: WeightsMessage) -> None:
        """Send the weights; return once they may change.

        Raises:
            Exception: the weights cannot be sent at all; no receiver has received anything.
        """

    async def end(self) -> Mapping[Hashable, Exception | None]:
        """Wait for the answers; return each receiver's error, or None. May be called again after a cancellation.

        Raises:
            WrongAcknowledgement: a receiver has sent an unexpected answer; the call may be repeated.
        """

    def abandon(self) -> None:
        """Abandon the delivery."""


class SyncHandle(Work[SyncReport]):
    """A staged version, whose source may change. Awaiting the handle waits until every receiver has applied it.

    Awaiting raises the error of the first receiver that failed. The error's notes name all failed receivers, and
    ``report`` holds every receiver's outcome. A receiver that has not answered by the deadline fails with
    ``DeadlineExceeded``. Cancelling the last waiter abandons the wait, but the version stays published.

    Attributes:
        model: name of the weights.
        version: number of the version.
        report: outcome at each receiver; None until all have answered.
        nbytes: size in bytes of the largest part sent to any receiver.
        deliveries: deliveries to receivers that get the version as a message.
        begun: time at which publishing began.
        staged: seconds until the source was free to change.
    """

    _kind = "weights"
    model = ""

    def __init__(
        self,
        version: int,
        timeout: float,
        expire: Callable[[int], None],
        forget: Callable[[int], None],
        deliveries: Sequence[Delivery] = (),
    ) -> None:
        super().__init__()
        self.version = version
        self.nbytes = 0
        self.begun = self.staged = 0.0
        self.deliveries = deliveries
        self.report: SyncReport | None = None
        self._limit(timeout)
        self._at_deadline = expire
        self._forget = forget

    def __repr__(self) -> str:
        return f"<SyncHandle version {self.version} [{'done' if self.done() else 'pending'}]>"

    def _describe(self) -> str:
        return f"version {self.version} at its receivers"

    def _needs(self) -> slow_waits.Needs:
        return [Target(TargetKind.WEIGHTS, name=self.model)], True

    def _expire(self) -> None:
        self._at_deadline(self.version)

    def cancel(self) -> None:
        """Abandon the wait, so that the next version may be published."""
        self.abandon(ClosedError(f"nobody waited for {self._describe()} any more"))

    def abandon(self, error: Exception) -> None:
        """Fail the handle with an error, and abandon its deliveries."""
        self._forget(self.version)
        if self._settle(error=error):
            for delivery in self.deliveries:
                delivery.abandon()

    async def collect(self, answered: Callable[[Hashable, int, Exception | None], None]) -> None:
        """Wait until its deliveries have ended. May be called again after a cancellation.

        Raises:
            WrongAcknowledgement: a receiver has sent an unexpected answer; the call may be repeated.
        """

        async def follow(delivery: Delivery) -> None:
            for name, error in (await delivery.end()).items():
                answered(name, self.version, error)

        try:
            async with asyncio.TaskGroup() as tasks:
                for delivery in self.deliveries:
                    tasks.create_task(follow(delivery))
        except BaseExceptionGroup as group:
            # A receiver's failure counts as an answer, so this error is an unexpected one.
            raise group.exceptions[0] from None

    def finish(self, report: SyncReport) -> None:
        """Settle the handle with the report on all answers."""
        self.report = report
        try:
            report.raise_failures()
        except BaseException as error:
            self._settle(error=error)
        else:
            self._settle(report)

    def _abandon(self) -> None:
        self.cancel()
