"""A watchdog for collectives after a rank has failed: aborts the worker's process groups, or has the worker killed.

After a rank has failed, the caller notifies the other ranks (FAILED), once per open call. The socket thread of each of
these ranks then acts as follows::

    an operation is pending collective_timeout after the failure  ──►  the process groups are aborted, the method raises
    abort_grace later the method is still inside an operation     ──►  the daemon is asked to kill this process
    the method computes, or waits for something else              ──►  no action here; its caller names it in warnings

The failed rank will not enter another collective within the failed call, but it may in another call. So a collective of
another call is aborted only if the failed rank belongs to its process group and, according to the rank's daemon, has
neither that call nor a later one left to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._client.client import NodeClient
from rlinf_async._client.requests import DaemonRequest
from rlinf_async._core import clock, frames, operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async._transports import process_groups
from rlinf_async._transports.process_groups import Collectives, Pending, PythonProbe
from rlinf_async._worker.running_call import Call, CallState

logger = own_logger(__name__)

_TOGETHER_S: Final = 0.01  # delay before the first check, because notices about many calls arrive together


@dataclass
class Watched:
    """A call of this worker during which another rank has failed.

    Attributes:
        rank, endpoint: the rank that failed first, and its endpoint.
        text: description of the failure: ``"rank 3 of group 'actor' failed in step() (ValueError: no)"``.
        is_own: true if the rank failed in this same call.
        ends: true if the caller will repeat the call, so its pending waits are ended immediately.
        failed_call: number of the call in which the rank failed.
        failed_at: time of the failure, by ``clock.monotonic()``.
        is_aborted: true from the time its process groups are aborted until the grace period has expired.
        second_half: probe that tells whether the call has run Python code in the second half of the grace period.
    """

    call: Call
    rank: int
    endpoint: int
    text: str
    is_own: bool
    failed_call: int
    failed_at: float
    ends: bool = False
    is_aborted: bool = False
    second_half: PythonProbe | None = None


class CollectiveWatch:
    """Tracks failed ranks of a worker's group, and acts on the worker's own pending collectives."""

    def __init__(self, client: NodeClient, calls: Mapping[tuple[int, int], Call], world_size: int) -> None:
        self._client = client
        self._calls = calls
        self._world_size = world_size
        self._timeout, self._grace = settings.COLLECTIVE_TIMEOUT_S(), settings.ABORT_GRACE_S()
        self._collectives = Collectives()
        self._watched: dict[tuple[int, int], Watched] = {}
        self._timer: asyncio.TimerHandle | None = None

    def failed(self, call: Call, facts: Mapping[str, Any]) -> None:
        """Watch one of this worker's calls, because a rank of the group has failed. Any thread may call this."""
        failed_at = clock.monotonic() - facts["seconds_ago"]
        watched = Watched(
            call, facts["rank"], facts["endpoint"], facts["text"], facts["is_own"], facts["call"], failed_at,
            ends=facts.get("ends", False),
        )  # fmt: skip
        call.failure = facts["text"]
        self._client.later(0, lambda: self._watch(watched))

    def ended(self) -> None:
        """Stop watching ended calls. Any thread may call this."""
        self._client.later(0, self._drop_ended)

    def _watch(self, watched: Watched) -> None:
        key = watched.call.source, watched.call.call
        known = self._watched.get(key)
        if known is None or watched.ends or (watched.is_own and not known.is_own):
            self._watched[key] = watched
        self._look_after(_TOGETHER_S)

    def _look_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._client.loop.call_later(seconds, self._look)

    def _drop_ended(self) -> None:
        for key in [key for key, watched in self._watched.items() if watched.call.state is CallState.ENDED]:
            del self._watched[key]
        if not self._watched:
            # Keep sampled stacks only for watched calls: frames keep the user's tensors alive.
            self._collectives.forget()

    def _look(self) -> None:
        self._drop_ended()
        if not self._watched:
            return
        now = clock.monotonic()
        counts_from = self._client.events.counts_from
        first = min(counts_from(each.failed_at) + self._patience(each) for each in self._watched.values())
        if first > now:  # nothing is due, so skip the slow query of the recorder
            self._collectives.sample()
            self._look_after(first - now)
            return
        due = min(self._patience(watched) or self._grace for watched in self._watched.values())
        try:
            for watched, operation in self._stuck():
                rest = self._rest(watched, operation)
                if rest > 0:
                    due = min(due, rest)
                elif watched.is_aborted:
                    continue  # ``_end`` decides once the grace period is over
                elif watched.is_own:
                    self._abort(watched, operation)
                    break
                elif process_groups.takes_part(operation, watched.rank, self._world_size):
                    self._query_failed_rank(watched)
        finally:  # torch raises about groups that the main thread destroys at this moment, and others may still wait
            self._look_after(due)

    def _patience(self, watched: Watched) -> float:
        return 0.0 if watched.ends else self._timeout

    def _rest(self, watched: Watched, operation: Pending) -> float:
        begun = self._client.events.counts_from(max(watched.failed_at, operation.since))
        return begun + self._patience(watched) - clock.monotonic()

    def _stuck(self) -> list[tuple[Watched, Pending]]:
        """Return every watched call whose method is running, paired with each pending operation."""
        running = [call for call in list(self._calls.values()) if call.state is CallState.RUNNING]
        # While a ``def`` method runs, the loop is blocked, so a pending operation belongs to that method.
        blocking = [call for call in running if call.task is None]
        concerned = [watched for watched in self._watched.values() if watched.call in (blocking or running)]
        if not concerned:
            return []
        pending = self._collectives.pending()
        return [(watched, operation) for watched in concerned for operation in pending]

    def _query_failed_rank(self, watched: Watched) -> None:
        number, call = frames.number_of(watched.endpoint), watched.call
        operation = operations.OwesCall(number, call.source, call.call, after=watched.failed_call)
        request = self._client.request(operation, node=frames.node_of(watched.endpoint))
        request._follow(lambda: self._client.later(0, lambda: self._decide(watched, request)))

    def _decide(self, watched: Watched, request: DaemonRequest[bool]) -> None:
        try:
            may_come = request.wait()
        except Exception as error:  # the failed rank's node is lost
            logger.debug("where rank %d was, none answers: %s", watched.rank, error)
            may_come = False
        for each, operation in [] if may_come else self._stuck():
            if each is watched and self._rest(watched, operation) <= 0 and not watched.is_aborted:
                self._abort(watched, operation)
                break

    # -- abort and kill ---------------------------------------------------------------------------------------------

    def _abort(self, watched: Watched, operation: Pending) -> None:
        watched.is_aborted = True
        seconds = clock.monotonic() - watched.failed_at
        logger.warning(
            "%s(), in which %s() has waited since %s %.1f s ago, is aborted with all process groups of this process",
            operation.name, watched.call.method, watched.text, seconds,
        )  # fmt: skip
        since_abort = PythonProbe() if watched.call.task is None else None
        try:
            self._collectives.abort([each for _, each in self._stuck()])
        except Exception as error:  # no descriptors or threads are available
            logger.warning("the process groups could not be aborted: %s", error)
        # Start the grace period only after the abort, which may have waited a long time for a CPU.
        loop = self._client.loop
        loop.call_later(self._grace / 2, self._sample, watched)
        loop.call_later(self._grace, self._end, watched, operation, since_abort)

    def _sample(self, watched: Watched) -> None:
        if watched.call.state is not CallState.ENDED:
            self._collectives.sample()
            watched.second_half = PythonProbe()

    def _end(self, watched: Watched, operation: Pending, since_abort: PythonProbe | None) -> None:
        """Request a kill if this process is still in the aborted collective, or has been in another for a long time."""
        second_half, watched.second_half, watched.is_aborted = watched.second_half, None, False
        if watched.call.state is CallState.ENDED or self._client.events.in_debugger:
            return
        latest = clock.monotonic() - self._grace / 3
        stuck = [each for other, each in self._stuck() if other.call is watched.call and each.since < latest]
        if second_half is None or second_half.has_run:  # this process is computing, so torch's record may stay open
            stuck = [each for each in stuck if each.record < 0]
        # A peer's abort may have freed this rank before its own abort did. In that case this rank has run Python code
        # since then, even if torch's record is still open. tests/test_collectives.py::
        # test_a_rank_that_a_peers_abort_has_freed_and_that_computes_is_not_killed
        if since_abort is not None and not since_abort.has_run:
            stuck.append(operation)
        if not stuck:
            return
        seconds = clock.monotonic() - watched.failed_at
        text = (
            f"was killed because it was still inside {watched.call.method}(), in {stuck[0].name}(), {seconds:.1f} s "
            f"after {watched.text}; the aborting of its process groups had not freed it"
        )
        self._client.request(operations.KillStuck(text))


def advice(text: str) -> str:
    """Return the note to add to an error that a method raises after another rank has failed."""
    return (
        f"{text}, and the process groups of ranks that wait for it in a collective of torch are aborted "
        f"{settings.COLLECTIVE_TIMEOUT_S():g} s later ({settings.COLLECTIVE_TIMEOUT_S.variable}). Calls without "
        "collectives work; before the next collective every rank calls torch.distributed.destroy_process_group() and "
        "makes its process groups anew (docs/supervision.md, Collectives)"
    )
