"""Notices from a caller to ranks that may be waiting, in a collective of an open call, for a rank that has failed.

A notice is sent after a delay, because most calls affected by a failure end within a second. The notified rank decides
how and when to react (``_worker/collective_watch.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rlinf_async import settings
from rlinf_async._client.client import NodeClient
from rlinf_async._client.reply_handler import NOWHERE
from rlinf_async._core import clock
from rlinf_async.handle import Handle
from rlinf_async.stream import StreamCall

CallHandle = Handle | StreamCall

# Seconds between a failure and its notices; ``collective_timeout`` is at least twice as long.
_QUIET_S: Final = 1.0

_AGAIN_S: Final = 0.05


@dataclass(frozen=True)
class RankFailure:
    """The failure of a rank.

    Attributes:
        call: number of the call in which the rank failed; 0 if it failed between calls.
        describe: function that returns ``"rank 3 of group 'actor' failed in step() (ValueError: no)"``.
        at: time of the failure, by ``clock.monotonic()``.
    """

    rank: int
    endpoint: int
    call: int
    describe: Callable[[], str]
    at: float = field(default_factory=lambda: clock.monotonic())


@dataclass
class FailureConcern:
    """An open call affected by a failure; ``is_own`` is True if the rank failed in this call."""

    handler: CallHandle
    failure: RankFailure
    is_own: bool
    notified: bool = False


class FailureNotices:
    """The failures of one group's ranks, and the open calls affected by them.

    A failure affects the failed call itself, the calls open at that time, and the calls open when the failed call ends,
    because a rank that is called again after its failure is out of step with ranks that are still in the failed call.
    """

    def __init__(self, client: NodeClient, open_calls: Mapping[int, CallHandle]) -> None:
        self._client = client
        self._open = open_calls
        self._quiet = min(_QUIET_S, settings.COLLECTIVE_TIMEOUT_S() / 2)
        self._armed = False
        self.concerns: dict[int, FailureConcern] = {}  # the affected open calls, by ``id``

    def failed(self, failure: RankFailure, handler: CallHandle | None) -> None:
        """Record a rank's failure, in a call or between calls; called on the thread that handles answers."""
        if handler is not None and handler._unanswered():
            self.concerns[id(handler)] = FailureConcern(handler, failure, is_own=True)
        self._spread(failure, handler)

    def finished(self, handler: CallHandle) -> None:
        """Remove an answered call. Calls made while it was open may have reached a rank that was out of step."""
        concern = self.concerns.pop(id(handler), None)
        if concern is not None and concern.is_own:
            self._spread(concern.failure, handler)

    def _spread(self, failure: RankFailure, handler: CallHandle | None) -> None:
        if len(self._open) > len(self.concerns):  # avoids quadratic time if a thousand calls fail together
            for other in list(self._open.values()):
                if other is not handler:
                    self.concerns.setdefault(id(other), FailureConcern(other, failure, is_own=False))
        if self.concerns:
            self._arm(failure.at + self._quiet)

    def _arm(self, due: float) -> None:
        if not self._armed:
            self._armed = True
            self._client.later(max(0.0, due - clock.monotonic()), self._send_notices)

    def _send_notices(self) -> None:
        self._armed = False
        now = clock.monotonic()
        later: list[float] = []
        for concern in list(self.concerns.values()):
            due = concern.failure.at + self._quiet
            if not concern.handler._unanswered():  # the call was answered while another thread was still sending it
                self.finished(concern.handler)
                continue
            if concern.notified:
                continue
            if due > now or not concern.handler._departed:
                later.append(max(due, now + _AGAIN_S))
                continue
            concern.notified = True
            self._notify_ranks(concern, now)
        if later:
            self._arm(min(later))

    def end(self, handler: Handle, failure: RankFailure) -> None:
        """Cancel a call because a rank has died, and make the call's other ranks stop waiting immediately.

        The call stays open until these ranks have answered.
        """
        self._notify_ranks(FailureConcern(handler, failure, is_own=True), clock.monotonic(), ends=True)
        handler._cancel_open()

    def _notify_ranks(self, concern: FailureConcern, now: float, *, ends: bool = False) -> None:
        handler, failure = concern.handler, concern.failure
        facts = {
            "rank": failure.rank,
            "endpoint": failure.endpoint,
            "call": failure.call,
            "text": failure.describe(),
            "seconds_ago": now - failure.at,
            "is_own": concern.is_own,
            "ends": ends,
        }
        targets = (handler._targets[slot] for slot in handler._unanswered())
        told = [target for target in targets if target not in (failure.endpoint, NOWHERE)]
        self._client.send_failure(handler._call, told, facts)
