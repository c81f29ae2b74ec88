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
    """A version of the weights as a message carries it.

    Attributes:
        timeout: seconds that the receivers have; None: as long as it takes.
    """

    model_id: str
    version: int
    weights: Any
    timeout: float | None


class Delivery(Protocol):
    """One parcel's way to a receiver, or to several by one call; or into memory of the sender's own, to nobody."""

    @property
    def names(self) -> Sequence[Hashable]:
        """Of the receivers."""

    @property
    def has_begun(self) -> bool:
        """Whether a receiver may have heard of the version, or may hear of it yet, so that its number is spent."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights as they travelled; 0: not known."""

    async def stage(self, parcel: WeightsMessage) -> None:
        """Sends it; finished when the weights may change.

        Raises:
            Exception: it cannot be sent at all; nobody has got anything.
        """

    async def end(self) -> Mapping[Hashable, Exception | None]:
        """Waits for the answers: of each receiver its error, or None; if that is cancelled, it may be called again.

        Raises:
            WrongAcknowledgement: a receiver has said something else than what was expected; it may be called again.
        """

    def abandon(self) -> None:
        """Ends what nobody waits for any more."""


class SyncHandle(Work[SyncReport]):
    """A version that is staged: the source may change.  Awaiting it waits until every receiver has applied it.

    It raises what went wrong at the first receiver that failed; its notes name all of them, and ``report`` says what
    became of the others.  A receiver that has not answered at the deadline has failed with ``DeadlineExceeded``.  The
    last waiter to be cancelled gives the wait up; the version is published all the same.

    Attributes:
        model: the name of the weights.
        version: of the weights.
        report: who has it; None until all have answered.
        nbytes: the largest part of it that goes to a receiver.
        deliveries: those of its receivers that get it as a message.
        begun: when its publishing was begun.
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
        """The deadline is over: whoever has not answered has failed."""
        self._at_deadline(self.version)

    def cancel(self) -> None:
        """Nobody waits for it any more; the next version may be published."""
        self.abandon(ClosedError(f"nobody waited for {self._describe()} any more"))

    def abandon(self, error: Exception) -> None:
        """Ends it with an error, and with it what is under way."""
        self._forget(self.version)
        if self._settle(error=error):
            for delivery in self.deliveries:
                delivery.abandon()

    async def collect(self, answered: Callable[[Hashable, int, Exception | None], None]) -> None:
        """Waits for the ends of its deliveries; if that is cancelled, it may be called again.

        Raises:
            WrongAcknowledgement: a receiver has said something else; it may be called again.
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
        """All have answered."""
        self.report = report
        try:
            report.raise_failures()
        except BaseException as error:
            self._settle(error=error)
        else:
            self._settle(report)

    def _abandon(self) -> None:
        self.cancel()
