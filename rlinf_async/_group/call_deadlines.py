"""``CallDeadlines``: the deadline of a group's calls, with a single timer that ends late calls."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence

from rlinf_async._client.client import NodeClient
from rlinf_async._core import clock
from rlinf_async.handle import Handle
from rlinf_async.outcome import CallDeadline
from rlinf_async.stream import StreamCall


class CallDeadlines:
    """A watchdog that ends calls of one group that are not answered in time.

    Args:
        calls: returns the open calls in sequences, each oldest first.
        in_order: returns True if, in each sequence, later calls have later deadlines.

    Attributes:
        limit: the deadline of each call; None for no deadline.
    """

    def __init__(
        self,
        client: NodeClient,
        calls: Callable[[], Iterable[Sequence[Handle | StreamCall]]],
        in_order: Callable[[], bool],
    ) -> None:
        self._client = client
        self._calls = calls
        self._in_order = in_order
        self.limit: CallDeadline | None = None
        self._counts_from = 0.0  # monotonic time at which the constructors ended
        self._timer = threading.Lock()  # held while the timer is set, so that concurrent callers set only one

    def __repr__(self) -> str:
        return f"<CallDeadlines [{self.limit}]>"

    def begin(self, limit: CallDeadline | None, ready: Handle | None) -> None:
        """Give each call a deadline, counted from the end of the constructors' call (``ready``) at the earliest."""
        self.limit = limit
        if limit is not None and ready is not None:
            self._counts_from = math.inf
            self._timer.acquire()
            ready._follow(self._begin_counting)

    def _begin_counting(self) -> None:
        self._counts_from = clock.monotonic()
        self._look()

    def now(self) -> CallDeadline | None:
        """Return the calls' deadline; None while constructors run."""
        return None if self._counts_from == math.inf else self.limit

    def watch(self) -> None:
        if self.limit is not None and self._timer.acquire(blocking=False):
            self._client.later(self.limit.seconds, self._look)

    def _look(self) -> None:
        """End the calls whose deadline has passed, and set the timer for the next deadline.

        Calls are opened in the order in which they were made and have the same deadline, so a single timer serves the
        group: it is set for the oldest call, and an answered call need not cancel it. The timer's lock is held until no
        call is open. A call that begins before the lock is released finds the timer set; the second pass handles it.
        """
        left = self._expire_calls()
        if left is None:
            self._timer.release()
            left = self._expire_calls()
            if left is None or not self._timer.acquire(blocking=False):
                return
        self._client.later(left, self._look)

    def _expire_calls(self) -> float | None:
        return min((left for calls in self._calls() if (left := self._expire(calls)) is not None), default=None)

    def _expire(self, handlers: Sequence[Handle | StreamCall]) -> float | None:
        assert self.limit is not None
        least: float | None = None
        for handler in handlers:
            if isinstance(handler, StreamCall) or handler.done() or handler._expired:
                continue
            if handler._method == "__init__":  # constructors have no deadline
                continue
            begun = self._client.events.counts_from(max(handler._since, self._counts_from))
            left = begun + self.limit.seconds - clock.monotonic()
            if left <= 0:
                handler._expire()
            elif self._in_order():
                return left
            else:
                # A call that waited for its rank may have been sent after younger calls.
                least = left if least is None else min(left, least)
        return least
