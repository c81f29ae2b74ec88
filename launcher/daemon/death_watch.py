"""Death notifications: endpoints of any node watch workers of this node, and are told when those end."""

from __future__ import annotations

from typing import Any

from rlinf_async._core import frames, operations

from .endpoint import Endpoint
from .handlers import Requester
from .router import Router


class DeathWatch:
    """The ends of this node's workers, told to the endpoints of any node that watch them.

    Each end is told as an ``ended`` event in the name of the one who has ended: so it comes after everything that it
    had sent, large bodies that are still on their way between the nodes included.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._watchers: dict[int, set[int]] = {}
        """By endpoint id of the watched."""
        self.deaths = 0
        """Ends that were not expected."""

    async def watch(self, requester: Requester, op: operations.Watch) -> None:
        """Tell the asker of the end of these workers of this node, also if that has been already."""
        for number in op.numbers:
            self._watch(requester.endpoint, number)

    async def watched_by(self, requester: Requester, op: operations.WatchedBy) -> None:
        """The asker is a worker of this node: its end is told to these endpoints, which it is about to write to.

        So whoever hears from a worker hears of its end as well, and before anything that its end has made possible.
        """
        for watcher in op.endpoints:
            self._watch(watcher, frames.number_of(requester.endpoint))

    async def how_ended(self, requester: Requester, op: operations.HowEnded) -> Any:
        """Return the exit report of a worker of this node; None where it lives, or its end was expected."""
        endpoint = self._router.endpoints.get(op.number) or self._router.replaced.get(op.number)
        return None if endpoint is None or endpoint.exit_report is None else _report_of(endpoint)

    def _watch(self, watcher: int, number: int) -> None:
        # One that has made room for its rank's next process is not one of a group that was closed.
        endpoint = self._router.endpoints.get(number) or self._router.replaced.get(number)
        watched = frames.endpoint(self._router.node, number)
        if endpoint is None:
            self._notify(watcher, watched, None)
        elif endpoint.exit_report is not None:
            self._notify(watcher, watched, _report_of(endpoint))
        else:
            self._watchers.setdefault(watched, set()).add(watcher)

    def ended(self, endpoint: int, report: Any) -> None:
        """A worker of this node has ended; ``report`` is None where its group was closed."""
        self.deaths += report is not None
        for watcher in self._watchers.pop(endpoint, ()):
            self._notify(watcher, endpoint, report)

    def forget(self, gone: int) -> None:
        """An endpoint of any node does not listen any more, and is not watched."""
        self._watchers.pop(gone, None)
        for watched in [watched for watched, watchers in self._watchers.items() if gone in watchers]:
            self._watchers[watched].discard(gone)
            if not self._watchers[watched]:
                del self._watchers[watched]

    def _notify(self, watcher: int, endpoint: int, report: Any) -> None:
        facts = {"endpoint": endpoint, "report": report}
        self._router.deliver((frames.EVENT, 0, endpoint, watcher, "ended", facts))


def _report_of(endpoint: Endpoint) -> Any:
    """The exit report of a process that has ended; None where that was expected."""
    assert endpoint.exit_report is not None
    process = (endpoint.root or endpoint).process
    return None if process is None or process.closing else frames.unpack(endpoint.exit_report)
