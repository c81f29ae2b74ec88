"""Handle of one weight update: its acknowledgements, its deadline, its report; deliveries of it as messages."""

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
    """One version of the weights in a message.

    Attributes:
        timeout: seconds that the receivers have; None: no limit.
    """

    model_id: str
    version: int
    weights: Any
    timeout: float | None


class Delivery(Protocol):
    """Delivery of a message to one receiver, or to several by one call."""

    @property
    def names(self) -> Sequence[Hashable]:
        """Names of the receivers."""

    @property
    def has_begun(self) -> bool:
        """True if a receiver may have heard of the version, so that its number is used up."""

    @property
    def nbytes(self) -> int:
        """Size of the weights as they travelled, in bytes; 0 if it is not known."""

    async def stage(self, parcel: WeightsMessage) -> None:
        """Send the weights; return when they may change.

        Raises:
            Exception: they cannot be sent at all; no receiver has got anything.
        """

    async def end(self) -> Mapping[Hashable, Exception | None]:
        """Wait for the answers; return each receiver's error, or None. May be called again after a cancellation.

        Raises:
            WrongAcknowledgement: a receiver has answered something unexpected; this may be called again.
        """

    def abandon(self) -> None:
        """Stop what is under way."""


class SyncHandle(Work[SyncReport]):
    """A version that is staged: the source may change. Awaiting it waits until every receiver has applied it.

    It raises the error of the first receiver that failed; its notes name all of them, and ``report`` has the outcome at
    the others. A receiver that has not answered at the deadline has failed with ``DeadlineExceeded``. Cancelling the
    last waiter abandons the wait; the version is published all the same.

    Attributes:
        model: name of the weights.
        version: number of the version.
        report: outcome at each receiver; None until all have answered.
        nbytes: size of the largest part that goes to a receiver, in bytes.
        deliveries: deliveries to receivers that get it as a message.
        begun: time when its publishing began.
        staged: seconds until the source could change.
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
        """Abandon the wait; the next version may be published."""
        self.abandon(ClosedError(f"nobody waited for {self._describe()} any more"))

    def abandon(self, error: Exception) -> None:
        """End it with an error, and stop its deliveries."""
        self._forget(self.version)
        if self._settle(error=error):
            for delivery in self.deliveries:
                delivery.abandon()

    async def collect(self, answered: Callable[[Hashable, int, Exception | None], None]) -> None:
        """Wait for the ends of its deliveries; may be called again after a cancellation.

        Raises:
            WrongAcknowledgement: a receiver has answered something unexpected; this may be called again.
        """

        async def follow(delivery: Delivery) -> None:
            for name, error in (await delivery.end()).items():
                answered(name, self.version, error)

        try:
            async with asyncio.TaskGroup() as tasks:
                for delivery in self.deliveries:
                    tasks.create_task(follow(delivery))
        except BaseExceptionGroup as group:  # a receiver that has failed is an answer: this is one nobody expected
            raise group.exceptions[0] from None

    def finish(self, report: SyncReport) -> None:
        """Settle it with the report of all answers."""
        self.report = report
        try:
            report.raise_failures()
        except BaseException as error:
            self._settle(error=error)
        else:
            self._settle(report)

    def _abandon(self) -> None:
        self.cancel()
