"""Reconciliation of a daemon's pending calls with local callers, which may have received replies on direct sockets.

A caller reports a direct call and its answer a few milliseconds late.  So before the daemon relies on its list of open
calls, in ``status()`` and when a worker dies, it waits for the callers' reports: one round trip, or
``RLINF_CALL_CHECK_S`` if a caller does not respond::

    daemon ── "check_calls": the open calls ───────────────► caller
    daemon ◄── PENDING: calls not reported yet ────────────── caller
    daemon ◄── "calls_checked": answered calls ───────────── caller
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rlinf_async import settings
from rlinf_async._core import frames, operations

from .endpoint import Endpoint
from .handlers import Requester
from .router import Router


@dataclass
class _Check:
    """One round of requests; ``silent`` contains the callers that have not answered."""

    silent: set[int]
    then: Callable[[], None]
    timer: asyncio.TimerHandle


class CallCheck:
    """Rounds of requests to callers; a round calls back when all have answered or the timeout expires."""

    def __init__(self, loop: asyncio.AbstractEventLoop, router: Router) -> None:
        self._loop = loop
        self._router = router
        self._numbers = itertools.count(1)
        self._checks: dict[int, _Check] = {}

    def begin(self, workers: Iterable[Endpoint], then: Callable[[], None]) -> None:
        """Call back once these workers' pending calls are reconciled, or immediately if no caller is local."""
        unanswered: dict[int, list[list[int]]] = {}
        for worker in workers:
            for source, call in worker.pending_calls:
                if self._listens(source):
                    unanswered.setdefault(source, []).append([worker.number, call])
        if not unanswered:
            then()
            return
        number = next(self._numbers)
        timer = self._loop.call_later(settings.CALL_CHECK_S(), self._end, number)
        self._checks[number] = _Check(set(unanswered), then, timer)
        for source, calls in unanswered.items():
            self._router.send_event(source, "check_calls", {"check": number, "calls": calls})

    def _listens(self, source: int) -> bool:
        # Answers to callers on other nodes pass through this daemon, so they need no check.
        caller = self._router.endpoints.get(frames.number_of(source))
        return frames.node_of(source) == self._router.node and caller is not None and caller.exit_report is None

    async def calls_checked(self, requester: Requester, op: operations.CallsChecked) -> None:
        for number, call in op.finished:
            self._router.settle(number, requester.endpoint, call)
        check = self._checks.get(op.check)
        if check is not None:
            check.silent.discard(requester.endpoint)
            if not check.silent:
                self._end(op.check)

    def _end(self, number: int) -> None:
        check = self._checks.pop(number)
        check.timer.cancel()
        check.then()
