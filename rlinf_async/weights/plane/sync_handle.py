"""Handle of one weight update: its acknowledgements, its deadline, its report."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_async.errors import ClosedError
from rlinf_async.weights.state.report import SyncReport
from rlinf_async.work import Work


class SyncHandle(Work[SyncReport]):
    """A version that is staged: the source may change.  Awaiting it waits until every receiver has applied it.

    It raises what went wrong at the first receiver that failed; its notes name all of them, and ``report`` says what
    became of the others.  A receiver that has not answered at the deadline has failed with ``DeadlineExceeded``.  The
    last waiter to be cancelled gives the wait up; the version is published all the same.

    Attributes:
        version: of the weights.
        report: who has it; None until all have answered.
        nbytes: the largest part of it that goes to a receiver.
    """

    def __init__(
        self, version: int, timeout: float, expire: Callable[[int], None], forget: Callable[[int], None]
    ) -> None:
        super().__init__()
        self.version = version
        self.nbytes = 0
        self.report: SyncReport | None = None
        self._limit(timeout)
        self._give_up = expire
        self._forget = forget

    def __repr__(self) -> str:
        return f"<SyncHandle version {self.version} [{'done' if self.done() else 'pending'}]>"

    def _describe(self) -> str:
        return f"version {self.version} at its receivers"

    def _expire(self) -> None:
        """The deadline is over: whoever has not answered has failed."""
        self._give_up(self.version)

    def cancel(self) -> None:
        """Nobody waits for it any more; the next version may be published."""
        self._forget(self.version)
        self._settle(error=ClosedError(f"nobody waited for {self._describe()} any more"))

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
