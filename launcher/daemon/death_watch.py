"""Death notifications: endpoints on any node watch workers of this node and receive an event when one ends."""

from __future__ import annotations

from typing import Any

from rlinf_async._core import frames, operations

from .endpoint import Endpoint
from .handlers import Requester
from .router import Router


class DeathWatch:
    """Registry of the endpoints, on any node, that watch this node's workers.

    The ``ended`` event about a worker carries the worker's own endpoint as its source.  Frames from one source stay in
    order, so the event arrives after everything that the worker sent, including large bodies still in transfer.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._watchers_of: dict[int, set[int]] = {}
        self.deaths = 0  # number of workers that ended unexpectedly

    async def watch(self, requester: Requester, op: operations.Watch) -> None:
        """Notify the requester when these local workers end, or immediately if they have already ended."""
        for number in op.numbers:
            self._watch(requester.endpoint, number)

    async def watched_by(self, requester: Requester, op: operations.WatchedBy) -> None:
        """Notify these endpoints, to which the requesting worker is about to send messages, when the worker ends.

        A process that receives a worker's message therefore learns of the worker's end before any consequence of it.
        """
        for watcher in op.endpoints:
            self._watch(watcher, frames.number_of(requester.endpoint))

    async def how_ended(self, requester: Requester, op: operations.HowEnded) -> Any:
        """Return a local worker's exit report; None if the worker is alive or its end was expected."""
        endpoint = self._router.endpoints.get(op.number) or self._router.replaced.get(op.number)
        return None if endpoint is None or endpoint.exit_report is None else _report_of(endpoint)

    def _watch(self, watcher: int, number: int) -> None:
        # A worker in ``replaced`` was not closed with its group: its rank was restarted as another endpoint.
        endpoint = self._router.endpoints.get(number) or self._router.replaced.get(number)
        watched = frames.endpoint(self._router.node, number)
        if endpoint is None:
            self._notify(watcher, watched, None)
        elif endpoint.exit_report is not None:
            self._notify(watcher, watched, _report_of(endpoint))
        else:
            self._watchers_of.setdefault(watched, set()).add(watcher)

    def ended(self, endpoint: int, report: Any) -> None:
        """Notify a local worker's watchers; ``report`` is None if its group was closed."""
        self.deaths += report is not None
        for watcher in self._watchers_of.pop(endpoint, ()):
            self._notify(watcher, endpoint, report)

    def forget(self, gone: int) -> None:
        """Drop an ended endpoint both as a watcher and as a watched worker."""
        self._watchers_of.pop(gone, None)
        for watched in [watched for watched, watchers in self._watchers_of.items() if gone in watchers]:
            self._watchers_of[watched].discard(gone)
            if not self._watchers_of[watched]:
                del self._watchers_of[watched]

    def _notify(self, watcher: int, endpoint: int, report: Any) -> None:
        facts = {"endpoint": endpoint, "report": report}
        self._router.deliver((frames.EVENT, 0, endpoint, watcher, "ended", facts))


def _report_of(endpoint: Endpoint) -> Any:
    """Return an ended process's exit report; None if its end was expected."""
    assert endpoint.exit_report is not None
    process = (endpoint.root or endpoint).process
    return None if process is None or process.closing else frames.unpack(endpoint.exit_report)
