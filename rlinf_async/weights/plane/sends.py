"""``Sends``: versions of one model on their way, one send after the other, and the report of each."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from rlinf_async._core import clock
from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost
from rlinf_async.weights.plane.publisher import Publisher
from rlinf_async.weights.plane.sync_handle import SyncHandle
from rlinf_async.weights.state.sync_report import Ack, SyncReport
from rlinf_async.weights.waiting.execution import SyncAdapter, Turns


class Sends:
    """Versions of ``publish`` or of a ``WeightSender``.

    Args:
        adapter: runs the sends.
        make: makes the publisher at its first use.

    Attributes:
        last: handle of the version sent last.
        untold: handles of versions whose outcome has not been reported to the user, the oldest first.
    """

    def __init__(self, adapter: SyncAdapter, make: Callable[[], Publisher]) -> None:
        self.last: SyncHandle | None = None
        self.untold: dict[SyncHandle, None] = {}
        self.turns = Turns(adapter)
        self._made: dict[str, Publisher] = {}
        self._make = make

    @property
    def made(self) -> Publisher | None:
        """The publisher, if it has been needed."""
        return self._made.get("publisher")

    @property
    def publisher(self) -> Publisher:
        made = self._made.get("publisher")
        # Two threads may both make one at the first send: all use the one that is stored first, and the other one has
        # begun nothing.  A lock could be held by a thread that a forked process lacks.
        # tests/weights/plane/test_sends.py::test_threads_that_send_first_at_once_have_one_publisher
        return self._made.setdefault("publisher", self._make()) if made is None else made

    @property
    def version(self) -> int:
        """The version that was sent last; 0 before the first."""
        return 0 if self.made is None else self.made.version

    @property
    def is_outcome_unknown(self) -> bool:
        """True if it is not known which receivers have the version sent last."""
        last = self.last
        return last is None or last.version != self.version or (last.done() and last.report is None)

    async def publish(self, *args: Any, **options: Any) -> SyncHandle:
        """``Publisher.publish``"""
        self.last = handle = await self.publisher.publish(*args, **options)
        return handle

    # -- outcomes -----------------------------------------------------------------------------------------------

    async def outcome(self, handle: SyncHandle, timeout: float | None, patience: float | None = None) -> SyncReport:
        """Wait until all receivers have answered, and mark the version as reported.

        Args:
            timeout: seconds of this wait.
            patience: seconds for receivers added since, if ``timeout`` is None; None: do not wait for these, and report
                also those that have left.

        Raises:
            DeadlineExceeded: some have not answered; names them, and the version is still under way.
            WrongAcknowledgement: as ``SyncHandle.collect``; likewise.
            ClosedError: the version was abandoned.
        """
        begun, deadline = clock.monotonic(), asyncio.timeout(timeout)
        try:
            async with deadline:
                report = await self._answers(handle)
        except TimeoutError:
            if not deadline.expired():
                raise
            if handle.report is None:
                raise self._late(handle, timeout) from None
            report = handle.report  # the last answer has come just then, and nobody could ask for it later
        except Exception:
            if handle.done():
                self.untold.pop(handle, None)
            raise
        if patience is not None:
            # A rank that has left, or is started again, may follow anew: it is asked as one that has come since.
            acks = _staying(report.per_worker)
            if late := [name for name in self.publisher.worker_ids if name not in acks]:
                rest = patience if timeout is None else clock.rest(timeout, begun)
                acks |= _staying(await self.publisher.catch_up(late, rest))
            report = dataclasses.replace(report, per_worker=acks)
        self.untold.pop(handle, None)  # and no later one, which another task may have sent meanwhile
        return report

    async def _answers(self, handle: SyncHandle) -> SyncReport:
        if handle.deliveries:
            await self.publisher.collect(handle)
        try:
            return await handle.async_wait()
        except Exception:
            if handle.report is None:
                raise
            return handle.report

    def _late(self, handle: SyncHandle, timeout: float | None) -> DeadlineExceeded:
        publisher = self.publisher
        lacking = ", ".join(sorted(map(str, publisher.waiting_for(handle))))
        return DeadlineExceeded(
            f"version {handle.version} of '{publisher.model_id}' was not delivered to {lacking} within {timeout:g} s; "
            "it is still pending"
        )

    def tell_earlier(self) -> None:
        """Raise the failure of an earlier version, once; a late receiver is no failure."""
        for handle in list(self.untold):
            if not handle.done():
                continue
            acks = {} if handle.report is None else handle.report.per_worker
            report = SyncReport(handle.version, {name: ack for name, ack in acks.items() if not _is_late(ack.error)})
            if handle is not self.last or report.failed:
                self.untold.pop(handle, None)  # another task may wait for its delivery, and tell of it too
                report.raise_failures()


def _staying(acks: Mapping[Any, Ack]) -> dict[Any, Ack]:
    return {name: ack for name, ack in acks.items() if not _has_left(ack.error)}


def _has_left(error: BaseException | None) -> bool:
    return isinstance(error, ClosedError) or (isinstance(error, PeerLost) and error.returns)


def _is_late(error: BaseException | None) -> bool:
    return isinstance(error, DeadlineExceeded) or _has_left(error)
