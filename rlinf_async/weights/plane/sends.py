"""``Sends``: runs one model's sends, one at a time, and reports on each version."""

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
    """The versions that ``publish`` or a ``WeightSender`` has sent, and their outcomes.

    Args:
        adapter: adapter that runs the sends.
        make: creates the publisher at first use.

    Attributes:
        last: handle of the last version sent; None before the first.
        untold: handles of versions whose outcome has not been reported to the user, oldest first.
    """

    def __init__(self, adapter: SyncAdapter, make: Callable[[], Publisher]) -> None:
        self.last: SyncHandle | None = None
        self.untold: dict[SyncHandle, None] = {}
        self.turns = Turns(adapter)
        self._made: dict[str, Publisher] = {}
        self._make = make

    @property
    def made(self) -> Publisher | None:
        """The publisher, if it already exists."""
        return self._made.get("publisher")

    @property
    def publisher(self) -> Publisher:
        made = self._made.get("publisher")
        # Two threads may both create a publisher at the first send. The one stored first wins; the other publisher has
        # started nothing and is discarded. Take no lock, because after a fork, a thread of the parent could still hold
        # it.
        # tests/weights/plane/test_sends.py::test_threads_that_send_first_at_once_have_one_publisher
        return self._made.setdefault("publisher", self._make()) if made is None else made

    @property
    def version(self) -> int:
        """The last version sent; 0 before the first."""
        return 0 if self.made is None else self.made.version

    @property
    def is_outcome_unknown(self) -> bool:
        """True if the outcome of the last version sent is unknown."""
        last = self.last
        return last is None or last.version != self.version or (last.done() and last.report is None)

    async def publish(self, *args: Any, **options: Any) -> SyncHandle:
        """Publish a version, as ``Publisher.publish`` does."""
        self.last = handle = await self.publisher.publish(*args, **options)
        return handle

    # -- outcomes -----------------------------------------------------------------------------------------------

    async def outcome(self, handle: SyncHandle, timeout: float | None, patience: float | None = None) -> SyncReport:
        """Wait until all receivers have answered, and mark the version as reported.

        Args:
            timeout: seconds that this call waits.
            patience: seconds to wait for receivers that were added later, if ``timeout`` is None. None does not wait
                for them, and includes receivers that have left.

        Raises:
            DeadlineExceeded: some receivers have not answered; the error names them, and the version is still pending.
            WrongAcknowledgement: as for ``SyncHandle.collect``; the version is still pending.
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
            report = handle.report  # the last answer has just arrived, and no later call could return it
        except Exception:
            if handle.done():
                self.untold.pop(handle, None)
            raise
        if patience is not None:
            # A rank that has left or was restarted may follow again, so treat it as if it had been added later.
            acks = _staying(report.per_worker)
            if late := [name for name in self.publisher.worker_ids if name not in acks]:
                rest = patience if timeout is None else clock.rest(timeout, begun)
                acks |= _staying(await self.publisher.catch_up(late, rest))
            report = dataclasses.replace(report, per_worker=acks)
        # Remove only this version, because another task may have sent a later version in the meantime.
        self.untold.pop(handle, None)
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
        """Raise the failure of an earlier version, but only once; a late receiver does not count as a failure."""
        for handle in list(self.untold):
            if not handle.done():
                continue
            acks = {} if handle.report is None else handle.report.per_worker
            report = SyncReport(handle.version, {name: ack for name, ack in acks.items() if not _is_late(ack.error)})
            if handle is not self.last or report.failed:
                self.untold.pop(handle, None)  # another task may be waiting for its delivery and report it, too
                report.raise_failures()


def _staying(acks: Mapping[Any, Ack]) -> dict[Any, Ack]:
    return {name: ack for name, ack in acks.items() if not _has_left(ack.error)}


def _has_left(error: BaseException | None) -> bool:
    return isinstance(error, ClosedError) or (isinstance(error, PeerLost) and error.returns)


def _is_late(error: BaseException | None) -> bool:
    return isinstance(error, DeadlineExceeded) or _has_left(error)
