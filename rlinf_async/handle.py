"""``Handle``: the results of one call to many ranks, awaited as a whole or by rank; cancellation and durations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, overload

from rlinf_async import settings
from rlinf_async._client.requests import DaemonRequest
from rlinf_async._core import codec, frames, operations
from rlinf_async._core.frames import Status
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.payload import Body, pack_body
from rlinf_async._core.pending_calls import CANCEL_OTHERS, FINISH, NOTHING, Tally
from rlinf_async._core.root_cause import name_ranks
from rlinf_async._core.type_variables import R
from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._waits import slow_waits
from rlinf_async._waits.thread_gate import must_await
from rlinf_async._waits.unobserved_errors import UnobservedError
from rlinf_async.errors import ClosedError, DeadlineExceeded
from rlinf_async.outcome import (
    Callee,
    Outcome,
    error_of,
    mark_observed,
    overdue,
    root_error,
    unobserved,
    unobserved_refusal,
)
from rlinf_async.work import DictOrWork, FloatOrWork, Part, ValueOrWork, Work

logger = own_logger(__name__)

_GONE: Final = frozenset({int(Status.DIED), int(Status.LOST)})

ASK_FIRST_S: Final = 0.02
"""Seconds between the first failure of an unawaited call and the cancellation of its other ranks. Answers arrive in
another thread, so a script may still call ``outcomes()`` in this time.
"""

# Seconds to wait for other answers after the first failure, because a death that caused the failure takes precedence.
_SETTLE_S: Final = 0.1


# This class has 56 methods: half of them implement hooks of ``Work``, the client's callbacks, or views of single ranks.
# All of them change the same tally under the same lock, so splitting the class would mean sharing the lock.
class Handle(Work[list[R]]):
    """A call that was sent to a group's ranks; awaiting it returns their results in rank order.

    The wait ends at the first failure: the call is cancelled on the other ranks, and the root cause is raised, with the
    other errors in its notes. The root cause is a death if there was one, because a death causes other errors;
    otherwise it is the earliest error.

    Example:
        handle = group.step(x)              # the call has been sent
        results = await handle              # [rank 0's, rank 1's, ...]; handle.wait() without a loop
        first = await handle[0]             # a single rank's result
        async for rank, value in handle.as_completed(): ...
        for outcome in await group.step(x).outcomes(): print(outcome.rank, outcome.ok)
        handle.cancel()
    """

    _kind = "call"
    _expired = False
    _targets: Sequence[int] = ()
    # Maps slots to the call's progress on a worker that died and was replaced.
    _executions: Mapping[int, str] = MappingProxyType({})
    # Pairs of a slot and a worker that died after the call had been sent to it, and that was replaced since.
    _deaths: frozenset[tuple[Any, ...]] = frozenset()
    # Works for parts of this call, and for its outcomes; a wait for any of them counts as a wait for this call.
    _views: tuple[Work[Any], ...] = ()
    _keep_going = False
    _cancelled = False
    _cancel_sent = False
    _iterated = 0  # number of active loops over ``as_completed``, which get the outcome even between waits
    _again: Sequence[Any] | None = None  # encoded arguments, if the call may be sent again to a restarted rank

    def __init__(self, callee: Callee, method: str) -> None:
        """Internal; call a method of a ``WorkerGroup`` to create an instance."""
        super().__init__()
        self._callee = callee
        self._method = method
        self._tally = Tally(len(callee.ranks))
        self._call = 0
        self._order: list[int] = []
        self._parts: dict[int, Part[Any]] | None = None
        self._tick: Part[None] | None = None
        self._cancel_wanted = False  # whether the ranks must be sent a cancel once the call has been sent
        self._retrieved = False
        self._cause: str | None = None
        self._departed = False
        self._outcome: tuple[list[Any] | None, BaseException | None] | None = None

    @property
    def _ended(self) -> Work[Any]:
        return self

    def __repr__(self) -> str:
        state = "done" if self._done else f"{self._tally.missing} of {len(self._callee.ranks)} open"
        return f"<Handle {self._callee.name}.{self._method}() [{state}]>"

    def _title(self) -> str:
        ranks = len(self._callee.ranks)
        return f"{self._callee.name}.{self._method}() on {ranks} rank{'s' * (ranks != 1)}"

    def _describe(self) -> str:
        missing = [self._callee.ranks[slot] for slot in self._tally.unanswered()]
        late = f", {name_ranks(missing)} {'has' if len(missing) == 1 else 'have'} not answered" if missing else ""
        return self._title() + late

    def _whom(self) -> str:
        missing = [self._callee.ranks[slot] for slot in self._tally.unanswered()]
        return f"{name_ranks(missing)} of '{self._callee.name}'"

    def _peer_activity(self) -> slow_waits.PeerActivity | None:
        return self._callee.peer_activity(self._tally.unanswered())

    def _needs(self) -> slow_waits.Needs:
        return self._answers_of(self._tally.unanswered()), True

    def _answers_of(self, slots: Sequence[int]) -> list[Target]:
        """Return the targets of a wait for these slots: their answers, or the restart that delays the call.

        The list contains no answers before the call has a number.
        """
        held = {slot for slot in slots if self._callee.holds(self, slot)}
        sent = [slot for slot in slots if self._call and slot not in held]
        found = [Target(TargetKind.CALL, self._callee.targets[slot], self._call) for slot in sent]
        return [*found, *([Target(TargetKind.RESTART, name=self._callee.name)] if held else [])]

    def _user_loop(self) -> asyncio.AbstractEventLoop | None:
        return self._callee.client.user_loop

    # -- answers, on the client's loop --------------------------------------------------------------------------

    def _begin(self, call: int) -> Sequence[int]:
        self._call, self._targets = call, self._callee.targets
        return self._targets

    def _mark_departed(self) -> None:
        self._departed = True
        if self._cancel_wanted:
            self._cancel_open()

    def _unanswered(self) -> Sequence[int]:
        return self._tally.unanswered()

    def _answer(self, slot: int, status: int, body: Body) -> bool:
        """Record a rank's answer. Return True if it was the last one."""
        if status in _GONE:
            is_open = not self._cancelled and self._tally.answers[slot] is None
            if is_open and self._callee.repeats(self, slot, status, bytes(body)):
                return False
            before = self._executions.get(slot, "not started")
            if status == Status.DIED and before != "not started":
                body = frames.pack({**frames.unpack(body), "execution": before})
        step = self._tally.answer(slot, status, body)
        if step is NOTHING:
            return self._tally.missing == 0
        self._order.append(slot)
        if self._parts is not None and slot in self._parts:
            self._settle_part(self._parts[slot], slot)
        if step is FINISH:
            self._finish()
            self._callee.call_finished(self, failed=self._tally.failed)
            return True
        if step is CANCEL_OTHERS:
            self._callee.call_failed(self)
            if self._waiters:
                self._stop_others()
            else:
                self._callee.client.later(ASK_FIRST_S, self._stop_others)
        if self._tick is not None:
            self._wake_tick()
        return False

    def _note_death(self, slot: int, report: dict[str, Any]) -> bool:
        """Record a death after which the call is sent again, because the dead worker's execution may have had effects.

        Return False if the death is already known: the end of the worker's socket reports it, too.
        """
        death = slot, report.get("node"), report.get("pid")
        if death in self._deaths:
            return False
        self._deaths |= {death}
        execution = report.get("execution", "unknown")
        if self._executions.get(slot, "not started") == "not started":
            self._executions = {**self._executions, slot: execution}
        return True

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._done:
                return
            self._outcome = (None, error)
        self._finish()

    def _finish(self) -> None:
        # Failures after the end or after a cancellation come from the ranks' cleanup, and are not reported as
        # unobserved.
        if (self._tally.failed or self._outcome is not None) and not (self._done or self._cancelled):
            self._arrive()
        self._settle()
        if self._parts is not None:
            for slot, part in list(self._parts.items()):
                if not part.done():
                    self._settle_part(part, slot)
        if self._tick is not None:
            self._wake_tick()

    def _wake_tick(self) -> None:
        tick, self._tick = self._tick, None
        if tick is not None:
            tick._settle()

    def _arrive(self) -> None:
        try:
            error = self._unobserved()
        except Exception:  # the call must end even if its errors are malformed
            logger.exception("the error of %s cannot be described", self._describe())
            return
        if error is None:
            return
        self._callee.client.unobserved.arrived(error)
        # Set the cause before testing ``_retrieved``: either a concurrent reader sees the cause, or this test sees the
        # reader.
        self._cause = error.cause
        if self._retrieved:
            self._callee.client.unobserved.observed(error.cause)

    def _unobserved(self) -> UnobservedError | None:
        awaited = bool(self._waiters or self._iterated) or any(view._waiters for view in self._views)
        if self._outcome is not None:
            error = self._outcome[1]
            if error is None or isinstance(error, ClosedError):
                return None
            return unobserved_refusal(self._callee, self._method, error, awaited=awaited)
        failed = [failure for failure in self._tally.failures() if failure[1] != Status.UNKNOWN]
        if not failed:
            return None
        return unobserved(self._callee, self._method, self._describe(), failed, awaited=awaited)

    def _is_forgotten(self) -> bool:
        """True if the call is open and the user has neither awaited it nor asked for its outcomes."""
        if self._done or self._cancelled or self._retrieved or self._iterated or self._tally.failed:
            return False
        return not any(work._waiters or work._was_awaited for work in (self, *self._views))

    def _stop_others(self) -> None:
        if not self._keep_going and not self._done:
            self._cancel_open()
            self._callee.client.later(_SETTLE_S, self._end_failed)

    def _report_to(self, view: Work[Any], callback: Callable[[], None]) -> None:
        with self._lock:
            self._views += (view,)
        self._follow(callback)

    def _has_failed(self) -> bool:
        if self._outcome is not None:
            return self._outcome[1] is not None
        return self._done and not (self._tally.whole and not self._tally.missing)

    def _cancel_after_failure(self) -> bool:
        """Cancel the call on every rank, after giving the ranks a moment to report their own failures."""
        if not self._done:
            self._cancelled = True
            self._cancel_open()
            if self._callee.client.loop.is_closed():
                self._finish()
            else:
                self._callee.client.later(_SETTLE_S, self._end_failed)
        return True

    def _end_failed(self) -> None:
        """End the call with the known failures; ranks that are stuck in a ``def`` method are named later."""
        if self._tally.missing:
            self._callee.client.later(max(0.0, settings.ABORT_GRACE_S() - _SETTLE_S), self._name_stuck)
            self._finish()

    def _name_stuck(self) -> None:
        slots = self._tally.unanswered()
        if not slots:
            return
        ranks = name_ranks(self._callee.ranks[slot] for slot in slots)
        are, they, wait, them = ("is", "it", "waits", "it") if len(slots) == 1 else ("are", "they", "wait", "them")
        self._note(
            f"{ranks} of '{self._callee.name}' {are} still inside {self._method}() {settings.ABORT_GRACE_S():g} s "
            f"after the failure; if {they} {wait} for the failed rank in a collective of torch, that is aborted "
            f"{settings.COLLECTIVE_TIMEOUT_S():g} s after it; closing the group ends {them}"
        )
        for node, numbers in frames.route_to(self._callee.targets, slots):
            request = self._callee.client.request(operations.FindStopped(numbers[::2]), node=node)
            request._follow(partial(self._name_stopped, request))

    def _name_stopped(self, request: DaemonRequest[list[int]]) -> None:
        if request._has_failed():
            return  # the node is lost; other code reports the loss
        stopped = {frames.endpoint(request.node, number) for number in request.wait()}
        called = zip(self._callee.ranks, self._callee.targets, strict=True)
        ranks = [rank for rank, target in called if target in stopped]
        if ranks:
            are = "is" if len(ranks) == 1 else "are"
            who = f"{name_ranks(ranks)} of '{self._callee.name}'"
            self._note(f"{who} {are} stopped (state T: by SIGSTOP or a debugger)")

    def _note(self, text: str) -> None:
        logger.warning("%s", text)
        with self._lock:
            if self._outcome is not None and self._outcome[1] is not None:
                self._outcome[1].add_note(text)

    def _expire(self) -> None:
        """End the call after its deadline, once the daemons have described what its ranks are doing.

        Answers, failures and deaths that arrive in the meantime still decide the outcome.
        """
        if self._done or self._expired or (self._tally.failed and not self._keep_going):
            return  # a failure is about to end the call
        self._expired = True
        slow_waits.with_peer_activity(self, self._end_expired)

    def _overdue(self, slots: Sequence[int], doing: str) -> DeadlineExceeded:
        return overdue(self._callee, self._method, slots, doing)

    def _end_expired(self, doing: str) -> None:
        if not (slots := self._tally.unanswered()):
            return
        error = self._overdue(slots, doing)
        with self._lock:
            if self._done:
                return
            self._outcome = (None, error)
        self._arrive()
        self._cancelled = True
        self._cancel_open()
        self._finish()

    def _cancel_open(self) -> None:
        """Cancel the open ranks only once, because a second cancellation would interrupt the first one's cleanup."""
        # A cancellation that overtakes its call is dropped, so do not send one while another thread is still sending
        # the call. Either that thread sees this flag when it marks the call as sent, or this thread sees that mark.
        # tests/_group/test_calls_between_steps.py::test_no_cancel_leaves_before_its_call
        self._cancel_wanted = True
        if self._cancel_sent or not self._departed:
            return
        targets = [self._callee.targets[slot] for slot in self._tally.unanswered()]
        if targets:
            self._cancel_sent = True
            self._callee.client.cancel(self._call, targets)

    # -- outcomes, in a waiter's thread -------------------------------------------------------------------------

    def _mark_retrieved(self) -> None:
        """Record that the user's code has received the outcome or an object that contains it."""
        self._retrieved = True
        if self._cause is not None:
            self._callee.client.unobserved.observed(self._cause)

    def _result(self) -> list[R]:
        self._mark_retrieved()
        if self._outcome is None:
            with self._lock:
                if self._outcome is None:
                    self._outcome = self._decode()
        values, error = self._outcome
        if error is not None:
            raise error.with_traceback(None)
        assert values is not None
        return values

    def _decode(self) -> tuple[list[Any] | None, BaseException | None]:
        tally = self._tally
        if tally.whole and not tally.missing:
            try:
                return [codec.decode(answer[1]) for answer in tally.answers if answer is not None], None
            except Exception as error:
                return None, error
        failed = tally.failures()
        if failed:
            return None, root_error(self._callee, failed)
        why = "by handle.cancel()" if self._cancelled else "because its group was closed"
        return None, ClosedError(f"{self._callee.name}.{self._method}() was cancelled {why}")

    def _part_outcome(self, slot: int, *, observes: bool = True) -> Outcome:
        rank = self._callee.ranks[slot]
        answer = self._tally.answers[slot]
        if answer is None:
            _, error = self._outcome or (None, None)
            text = f"{self._callee.describe_slot(slot)} had not answered {self._method}() when the call was given up"
            return Outcome(rank, error=error or ClosedError(text))
        status, body = answer
        if status == frames.OK:
            try:
                return Outcome(rank, codec.decode(body))
            except (Exception, SystemExit) as error:  # an exit raised here would end the loop that reads the answers
                return Outcome(rank, error=error)
        if status == Status.CANCELLED:
            text = f"{self._method}() was cancelled on {self._callee.describe_slot(slot)}"
            return Outcome(rank, error=ClosedError(text))
        if observes:
            mark_observed(self._callee, [(slot, status, body)])
        return Outcome(rank, error=error_of(self._callee, slot, status, body))

    def _settle_part(self, part: Work[Any], slot: int) -> None:
        outcome = self._part_outcome(slot, observes=False)
        part._settle(outcome.value, outcome.error)

    def _error_of_part(self, slot: int, error: BaseException) -> BaseException:
        """Return the error that a rank's view raises: its own error, or the error that caused its cancellation."""
        self._mark_retrieved()
        failed = self._tally.failures()
        own = [failure for failure in failed if failure[0] == slot]
        if own:
            mark_observed(self._callee, own)
        elif failed and isinstance(error, ClosedError):
            return root_error(self._callee, failed)  # another rank's failure caused this rank's cancellation
        return error

    # -- the user's side ----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._callee.ranks)

    def __getitem__(self, index: int) -> Work[R]:
        """Return a ``Work`` for one rank's result, given its position among the called ranks."""
        self._check_process()
        slot = range(len(self._callee.ranks))[index]
        with self._lock:
            if self._parts is None:
                self._parts = {}
            part = self._parts.get(slot)
            if part is None:
                part = self._parts[slot] = _OfRank(self, slot)
                self._views += (part,)
                answered = self._tally.answers[slot] is not None or self._done
            else:
                answered = False
        if answered:
            self._settle_part(part, slot)
        return part

    async def as_completed(self) -> AsyncIterator[tuple[int, R]]:
        """Yield (rank, value) in the order in which the ranks answer.

        Raises:
            Exception: the handle's exception, as soon as one rank has failed.
        """
        self._check_process()
        self._iterated += 1
        try:
            for seen in range(len(self._callee.ranks)):
                slot = await self._next_slot(seen)
                if slot is None:
                    return
                outcome = self._part_outcome(slot)
                if outcome.error is not None:
                    raise outcome.error
                yield outcome.rank, outcome.value
        finally:
            self._iterated -= 1
            self._left()

    async def _next_slot(self, seen: int) -> int | None:
        while True:
            with self._lock:
                if seen >= len(self._order) and not self._done and self._tick is None:
                    self._tick = _NextAnswer(self)
                    self._views += (self._tick,)
                tick = self._tick
            if seen >= len(self._order) and tick is not None:
                await tick
                continue
            if seen >= len(self._order) or (self._done and self._tally.failures()):
                self._result()
            if seen >= len(self._order):
                return None
            slot = self._order[seen]
            answer = self._tally.answers[slot]
            if answer is None or answer[0] != Status.OK:
                await self
            return slot

    def outcomes(self) -> Work[list[Outcome]]:
        """Return every rank's result or error. If this is called before a failure, the failure does not cancel other
        ranks.

        Returns:
            A ``Work``, to be used with ``await`` or ``.wait(timeout)``.
        """
        self._check_process()
        self._keep_going = True
        self._mark_retrieved()
        every: Part[list[Outcome]] = Part(self)

        def collect() -> None:
            every._settle([self._part_outcome(slot) for slot in range(len(self._callee.ranks))])

        with self._lock:
            if not self._done:
                self._followers = [*(self._followers or ()), collect]
                self._views += (every,)
                return every
        collect()
        return every

    def cancel(self) -> None:
        """Cancel the call on every rank: a call that is still queued never starts, and a coroutine gets
        ``CancelledError``.

        A ``def`` method that has begun runs to its end, and its result is dropped. Waiters get ``ClosedError``.
        """
        if self._done:
            return
        self._check_process()
        if self._tally.failed and not self._cancelled:
            self._arrive()  # only failures before the cancel are reported
        self._cancelled = True
        self._cancel_open()
        self._finish()

    def _abandon(self) -> None:
        self.cancel()

    def _left(self) -> None:
        if self._cause is not None:
            self._callee.client.unobserved.left(self._cause)

    def _lose_interest(self) -> None:
        if not any(view._waiters for view in self._views):
            super()._lose_interest()

    def consume_duration(self, reduction_type: str = "max") -> FloatOrWork:
        """Return the seconds recorded for the called method, reduced over the ranks by ``max``, ``min`` or ``mean``."""
        duration: FloatOrWork = self._durations(lambda times: _reduce(reduction_type, _only(times, self._method)))
        return duration

    @overload
    def consume_durations(
        self, reduction_type: str = "max", return_per_rank: Literal[False] = False
    ) -> DictOrWork[float]: ...
    @overload
    def consume_durations(self, reduction_type: str = "max", *, return_per_rank: Literal[True]) -> ValueOrWork: ...
    @overload
    def consume_durations(self, reduction_type: str, return_per_rank: bool) -> ValueOrWork: ...
    def consume_durations(self, reduction_type: str = "max", return_per_rank: bool = False) -> ValueOrWork:
        """Return the seconds recorded for each timer tag, reduced over the ranks, and reset the workers' timers.

        Returns:
            A dict that maps each tag to its seconds; with ``return_per_rank``, a tuple of that dict and a list of each
            rank's dict. In a coroutine, a ``Work`` that resolves to it.
        """

        def reduce(times: list[dict[str, float]]) -> Any:
            tags = dict.fromkeys(tag for rank_times in times for tag in rank_times)
            reduced = {
                tag: _reduce(reduction_type, [rank_times[tag] for rank_times in times if tag in rank_times])
                for tag in tags
            }
            return (reduced, times) if return_per_rank else reduced

        return self._durations(reduce)

    def _durations(self, reduce: Callable[[list[dict[str, float]]], Any]) -> Any:
        if not must_await():
            self.wait()
            return reduce(self._pop_times().wait())

        async def collect() -> Any:
            await self
            return reduce(await self._pop_times())

        return self._callee.client.run(collect(), what=f"the durations of {self._describe()}", abandonable=True)

    def _pop_times(self) -> Handle:
        handle = Handle(self._callee, "pop_execution_times")
        body, fds = pack_body(codec.encode(((), {})))
        self._callee.client.call(handle, frames.route_to, handle._method, body, fds)
        return handle

    def __reduce__(self) -> Any:
        raise TypeError("a handle belongs to the process that made the call: pass its results on, or a group's name")


WorkerGroupFuncResult = Handle
"""RLinf's name for ``Handle``."""


class _OfRank(Part[Any]):
    """A view of one rank's result; reading its error, but not its value, marks other ranks' errors as observed."""

    def __init__(self, handle: Handle, slot: int) -> None:
        super().__init__(handle)
        self._handle = handle
        self._slot = slot

    def _title(self) -> str:
        callee = self._handle._callee
        return f"{self._handle._method}() on rank {callee.ranks[self._slot]} of '{callee.name}'"

    def _needs(self) -> slow_waits.Needs:
        return self._handle._answers_of([self._slot]), True

    def _result(self) -> Any:
        if self._error is None:
            self._handle._left()
        else:
            self._error = self._handle._error_of_part(self._slot, self._error)
        return super()._result()


class _NextAnswer(Part[None]):
    def _needs(self) -> slow_waits.Needs:
        return super()._needs()[0], False


def _only(times: list[dict[str, float]], tag: str) -> list[float]:
    values = [rank_times[tag] for rank_times in times if tag in rank_times]
    if not values:
        known = sorted({known for rank_times in times for known in rank_times})
        raise ValueError(f"no timer of tag {tag!r} has been recorded; recorded tags: {known}")
    return values


def _reduce(reduction_type: str, values: list[float]) -> float:
    if reduction_type == "max":
        return max(values)
    if reduction_type == "min":
        return min(values)
    if reduction_type == "mean":
        return sum(values) / len(values)
    raise ValueError(f"reduction_type must be 'max', 'min' or 'mean', got {reduction_type!r}")
