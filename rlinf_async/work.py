"""``Work``: a started operation for which any thread or event loop may wait; ``Part``: a part or view of one."""

from __future__ import annotations

import asyncio
import threading
from asyncio import _get_running_loop as running_loop  # returns None where asyncio.get_running_loop would raise
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

from rlinf_async._core import clock, dialect, process
from rlinf_async._core.own_logger import own_logger
from rlinf_async._inspection.state.run_report import Target
from rlinf_async._recorder import recording
from rlinf_async._waits import loop_watch, slow_waits, unobserved_errors
from rlinf_async._waits.thread_gate import Gate, check_ended, may_wait, must_await, new_gate
from rlinf_async.errors import ClosedError, DeadlineExceeded, ForkedProcessError, UnobservedFailure

logger = own_logger(__name__)

T = TypeVar("T")

# Shared list of waiters for all finished works; it stays empty, because waiters are only added, under the lock, before
# a work ends.
_NOBODY: Final[list[Callable[[], None]]] = []

_DUE_S: Final = 0.001  # a deadline this close counts as passed, because a loop's timer may fire this much early


# This class has 44 methods, because the coroutine protocol and each refused operator need a method on the class itself.
class Work(Coroutine[Any, Any, T], Generic[T]):
    """A started operation; awaiting it returns its result.

    It may be awaited several times, by several tasks, in several loops and threads, before or after it is done; every
    waiter gets the same result or the same error. When the last waiter of an unfinished operation is cancelled, the
    operation is cancelled, too, unless the wait used ``asyncio.shield(work)`` or ``work.async_wait()``. A ``Work`` is a
    ``Coroutine``, so that ``TaskGroup.create_task`` accepts it. It cannot be mistaken for its result: comparing,
    calculating, indexing and iterating raise a ``TypeError`` that says what to write, and so does testing its truth
    value before it is done.

    Example:
        work = worker.recv("actor", 0)       # in a coroutine: starts without waiting
        tensor = await work                  # or work.wait() in a thread without a running loop
    """

    _kind = "operation"
    _ends_with_others = True  # whether, with ``fail_fast``, an unobserved error ends a plain ``wait()`` for this work
    _loop: asyncio.AbstractEventLoop | None = None
    # Seconds from ``_since`` to the deadline; None if neither this work nor, for a ``Whole``, any of its parts has one.
    _timeout: float | None = None
    _since = 0.0
    _was_awaited = False  # whether a wait for this work has ended without the result
    _event = 0

    def __init__(self) -> None:
        self._pid = process.pid
        self._lock = threading.Lock()
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiters: list[Callable[[], None]] = []
        # Callbacks that run at the end, but do not count as interest in the result.
        self._followers: list[Callable[[], None]] | None = None
        self._drivers: dict[Any, Generator[Any, Any, T]] | None = None

    def __repr__(self) -> str:
        state = "done" if self._done else "not done"
        return f"<{self._title()} [{state}: {self._awaiting()}, or `.wait()`]>"

    # -- hooks for subclasses -----------------------------------------------------------------------------------

    def _describe(self) -> str:
        """Return text that names the awaited event and the processes that cause it, for deadlines and warnings."""
        return "an operation"

    def _title(self) -> str:
        return self._describe()

    def _awaiting(self) -> str:
        """Return the code with which a coroutine waits for the result, for messages about a forgotten ``await``."""
        return "`await` it"

    def _whom(self) -> str:
        """Return the processes that must act to end the wait, for the table of waits; empty if unknown."""
        return ""

    def _peer_activity(self) -> slow_waits.PeerActivity | None:
        """Ask daemons to describe what the other side is doing, for a warning about a long wait."""
        return None

    def _needs(self) -> slow_waits.Needs:
        """Return the actions that would end the operation, for reports about the run; empty if unknown."""
        return [], True

    def _user_loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the user's loop that must run for this work to end; None if the framework needs no user's loop."""
        return self._loop

    def _lose_interest(self) -> None:
        """Abandon the operation if the waiter that has just left was the last one."""
        if self._pid != process.pid:
            return  # only the process that started the operation may abandon it
        with self._lock:
            last = not self._waiters and not self._done
        if last:
            self._abandon()

    def _left(self) -> None:
        pass

    def _abandon(self) -> None:
        pass

    def _report_to(self, view: Work[Any], callback: Callable[[], None]) -> None:
        """Call back at the end for a view's waiter, because a wait for the view counts as a wait for this work."""
        with self._lock:
            if not self._done:
                self._waiters.append(callback)
                return
        callback()

    def _has_failed(self) -> bool:
        return self._error is not None

    def _cancel_after_failure(self) -> bool:
        """Cancel this work because another in ``wait_all`` has failed. Return False if it may continue for long."""
        self._abandon()
        return self._done

    def _result(self) -> T:
        if self._error is not None:
            raise self._error.with_traceback(None)
        value: T = self._value
        return value

    # -- the work's deadline ------------------------------------------------------------------------------------

    def _limit(self, timeout: float | None) -> None:
        self._timeout, self._since = timeout, clock.monotonic()

    def _remaining(self) -> float | None:
        return None if self._timeout is None else max(0.0, self._since + self._timeout - clock.monotonic())

    def _time_left(self) -> float | None:
        """Return the seconds until the work ends by itself; None if it does not end by itself."""
        return self._remaining()

    def _expire(self) -> None:
        """Fail the operation because its deadline has passed; an explanation may first be added to the error."""
        self._settle(error=self._late(self._timeout))

    # -- settling -----------------------------------------------------------------------------------------------

    def _settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Finish the operation and wake all waiters. Return False if it was already finished."""
        with self._lock:
            if self._done:
                return False
            self._value, self._error = value, error
            self._done = True
            waiters, followers = self._waiters, self._followers
            self._waiters, self._followers = _NOBODY, None
        if self._event:
            recording.end(self._event, self._has_failed() if error is None else type(error).__name__)
        for wake in (*waiters, *followers) if followers else waiters:
            try:
                wake()
            except Exception:
                logger.exception("somebody who waited for %s could not be woken", self._describe())
        return True

    def done(self) -> bool:
        """Return True if the operation has ended, with a result or an error."""
        return self._done

    def _follow(self, callback: Callable[[], None]) -> None:
        """Call back at the end in the thread that settles the work, or now if it has ended; does not count as
        interest in the result."""
        with self._lock:
            if not self._done:
                self._followers = [*(self._followers or ()), callback]
                return
        callback()

    def _forget_waiter(self, wake: Callable[[], None]) -> bool:
        with self._lock:
            is_there = wake in self._waiters
            if is_there:
                self._waiters.remove(wake)
            return is_there

    # -- waiting ------------------------------------------------------------------------------------------------

    def _check_process(self) -> None:
        """Raise ForkedProcessError if the parent process started the operation, which can never end in a child."""
        if self._pid != process.pid and not self._done:
            raise self._inherited()

    def _inherited(self) -> ForkedProcessError:
        # A thread that held the lock at the fork does not exist in this process, and the waiters belong to the parent:
        # waking them would write to an eventfd that both processes share.
        self._lock, self._waiters = threading.Lock(), []
        return process.forked(f"what is to finish {self._describe()}", self._pid)

    def _waiting(self, *, abandon: bool) -> Generator[Any, Any, None]:
        if self._pid != process.pid:
            raise self._inherited()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        wakeups = _per_thread.wakeups
        if wakeups is None or wakeups.loop is not loop:
            wakeups = _per_thread.wakeups = _Wakeups(loop)
        waits = wakeups.waits

        def wake() -> None:
            if running_loop() is loop and not wakeups.waking:
                if not future.done():
                    future.set_result(None)
            else:
                wakeups.add(future)

        timers: list[asyncio.TimerHandle] | None = None
        watch = None if loop is loop_watch.only or not loop_watch.is_needed else loop_watch.watch(self, loop)
        with self._lock:
            if self._done:
                return
            self._waiters.append(wake)
        if watch is not None:
            watch.check_on(loop, future)
        try:
            if self._timeout is not None:
                timers = []
                timers.append(loop.call_later(self._remaining() or 0.0, self._meet_deadline, loop, timers))
            waits.rows[future] = (self, clock.monotonic())
            if not waits.armed:
                waits.arm()
            yield from future
        except BaseException:
            self._was_awaited = True
            with self._lock:
                if wake in self._waiters:
                    self._waiters.remove(wake)
                last = abandon and not self._waiters and not self._done
            if last:
                self._abandon()
            elif self._done:
                self._left()
            raise
        finally:
            waits.rows.pop(future, None)
            if timers:
                timers[0].cancel()
            if watch is not None:
                watch.cancel()

    def _meet_deadline(self, loop: asyncio.AbstractEventLoop, timers: list[asyncio.TimerHandle]) -> None:
        left = self._remaining()
        if left is not None and left <= _DUE_S:
            self._expire()
        elif left is not None:  # the part with this deadline has ended, so the next deadline is later
            timers[:] = (loop.call_later(left, self._meet_deadline, loop, timers),)

    def __await__(self) -> Generator[Any, Any, T]:
        if not self._done:
            yield from self._waiting(abandon=True)
        return self._result()

    async def async_wait(self, timeout: float | None = None) -> T:
        """Wait without owning the operation, so that cancelling the wait leaves the operation running.

        Raises:
            DeadlineExceeded: ``timeout`` seconds have passed.
        """
        if not self._done:
            deadline = asyncio.timeout(timeout)
            try:
                async with deadline:
                    await _EndOfWork(self)
            except TimeoutError:
                if not deadline.expired():
                    raise
                raise self._late(timeout) from None
        return self._result()

    def wait(self, timeout: float | None = None) -> T:
        """Block the calling thread until the operation is done. If ``timeout`` expires, the operation continues.

        Raises:
            RuntimeError: called on a thread whose running loop it would block (use ``await``), or in a function passed
                to ``then``.
            DeadlineExceeded: ``timeout`` seconds have passed.
            ForkedProcessError: the parent process started the operation.
            LoopNotRunning: the operation needs a user's loop that is closed, or has not run for some seconds.
            UnobservedFailure: another call has failed unawaited, and the cluster was created with ``fail_fast``.
        """
        if not self._done:
            self._wait_for_thread(timeout)
        return self._result()

    def _wait_for_thread(self, timeout: float | None) -> None:
        if self._pid != process.pid:
            raise self._inherited()
        if must_await() or (dialect.is_rlinf and running_loop() is (self._user_loop() or self)):
            raise RuntimeError(
                f".wait() would block the event loop that runs on this thread (waiting for {self._describe()}): "
                "use `await` here"
            )
        if not may_wait():
            raise RuntimeError(
                f".wait() would block what reads this process's sockets (waiting for {self._describe()}): a function "
                "that is given to then() must not wait"
            )
        if loop_watch.is_needed and (loop := self._user_loop()) is not None:
            loop_watch.check_open(loop, self._describe)
        gate = new_gate()
        began = clock.monotonic()
        with self._lock:
            if self._done:
                return
            self._waiters.append(gate.open)
        left = self._time_to(began, timeout)
        soon = slow_waits.REGISTER_AFTER_S if left is None else min(left, slow_waits.REGISTER_AFTER_S)
        try:
            if left is None and unobserved_errors.ending_waits and self._ends_with_others:
                self._wait_unless_others_fail(gate)
            elif not gate.wait(soon):
                self._wait_until_due(gate, began, timeout)
        except BaseException as error:
            self._was_awaited = True
            if not self._forget_waiter(gate.open):
                self._left()
            if isinstance(error, KeyboardInterrupt):
                told = slow_waits.duration_since(began, clock.monotonic())
                error.add_note(f"while waiting for {self._describe()}, {told}{unobserved_errors.warning_suffix()}")
            raise

    def _time_to(self, began: float, timeout: float | None) -> float | None:
        """Return the seconds until the work's deadline or the caller's, whichever is earlier; at least 0."""
        own = None if self._timeout is None else self._remaining()
        if timeout is None:
            return own
        left = max(0.0, began + timeout - clock.monotonic())
        return left if own is None else min(own, left)

    def _wait_until_due(self, gate: Gate, began: float, timeout: float | None) -> None:
        left = self._time_to(began, timeout)
        while not slow_waits.wait_on(self, gate, None if left is None else left + slow_waits.REGISTER_AFTER_S):
            own = None if self._timeout is None else self._remaining()
            if own is not None and own <= _DUE_S:
                self._expire()
                left = None  # no limit, because _expire will settle the work
                continue
            left = self._time_to(began, timeout)
            if timeout is not None and began + timeout - clock.monotonic() <= _DUE_S:
                raise self._late(timeout)

    def _wait_unless_others_fail(self, gate: Gate) -> None:
        def end() -> None:
            # A gate may be opened only once, either by this callback or by the thread that settles the work and has
            # taken its waiters.
            if self._forget_waiter(gate.open):
                gate.open()

        with unobserved_errors.watched(end) as watch:
            if watch.error is None and not gate.wait(slow_waits.REGISTER_AFTER_S):
                slow_waits.wait_on(self, gate, None)
            if watch.error is not None and not self._done:
                text = f"the wait for {self._describe()} was ended: nothing awaits the error of {watch.error.text}"
                raise UnobservedFailure(f"{text} (fail_fast)") from watch.error.make_cause()

    def _late(self, timeout: float | None) -> DeadlineExceeded:
        return DeadlineExceeded(f"{self._describe()} was not done within {timeout:g} s")

    def then(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Work[Any]:
        """Return a work for ``function(*args, **kwargs)``, called once this work has succeeded, in the thread that
        settles it.

        That thread may be the one that reads this process's sockets, so the function must not block: calls that would
        block return their ``Work`` instead. An error of this work or of the function becomes the new work's error.
        """
        self._check_process()

        def call() -> None:
            following.first = None  # do not keep the first work's result alive
            try:
                self._result()
                value = function(*args, **kwargs)
            except BaseException as error:
                following._settle(error=error)
            else:
                following._settle(value)

        def follow() -> None:
            _in_turn(call)

        following = _ThenWork(self, follow)
        following._loop = self._user_loop()
        with self._lock:
            if not self._done:
                self._waiters.append(follow)
                return following
        call()
        return following

    def __bool__(self) -> bool:
        if dialect.is_rlinf:
            return True
        if not self._done:
            raise TypeError(
                f"{self._describe()} is not done: {self._awaiting()} (or `.wait()`) before asking for its truth"
            )
        return bool(self._result())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int | float | str | bytes | list | tuple | dict):
            raise self._unawaited("comparing it")
        return NotImplemented  # compares by identity, because works are looked up in lists

    __hash__ = object.__hash__

    def __reduce__(self) -> Any:
        raise self._unawaited("sending it")

    def __format__(self, spec: str) -> str:
        if spec:
            raise self._unawaited(f"writing it as {spec!r}")
        return str(self)

    def _unawaited(self, use: str) -> TypeError:
        return TypeError(
            f"{self._title()} is a Work and not its result: {self._awaiting()} (or `.wait()`) before {use}"
        )

    # -- the coroutine protocol, with one generator per task that drives this object ------------------------------

    def send(self, value: Any) -> Any:
        """Continue the current task's wait (coroutine protocol); called by ``await``."""
        task = asyncio.current_task()
        if self._drivers is None:
            self._drivers = {}
        driver = self._drivers.get(task)
        if driver is None:
            driver = self._drivers[task] = self.__await__()
        try:
            return driver.send(value)
        except BaseException:
            self._drivers.pop(task, None)
            raise

    def throw(self, *error: Any) -> Any:
        """Raise an error in the current task's wait (coroutine protocol); called on cancellation."""
        drivers = self._drivers or {}
        task = asyncio.current_task()
        driver = drivers.get(task)
        if driver is None:  # the task was cancelled before its first step
            self._lose_interest()
            driver = self.__await__()
        try:
            return driver.throw(error[-1] if isinstance(error[-1], BaseException) else error[0])
        except BaseException:
            drivers.pop(task, None)
            raise

    def close(self) -> None:
        """End the current task's wait (coroutine protocol); other waits and the operation continue."""
        # Close only the current task's generator. A worker's background task, for example, closes the coroutine that it
        # was given; if that also closed other tasks' generators, their waits would never end.
        if self._drivers and running_loop() is not None and (driver := self._drivers.pop(asyncio.current_task(), None)):
            driver.close()


def _refuse(use: str) -> Callable[..., Any]:
    """Return a method that raises the error about a forgotten ``await``."""

    def refuse(self: Work[Any], *_: Any) -> Any:
        raise self._unawaited(use)

    return refuse


# Set outside the class, so that type checkers report the same mistakes. ``__iter__`` is among them because a loop would
# otherwise call ``__getitem__``, which a ``Handle`` defines.
for _methods, _use in {
    "lt le gt ge": "comparing it",
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod": "calculating with it",
    "int float index": "taking it for a number",
    "len": "asking for its length",
    "getitem": "indexing it or looping over it",
}.items():
    for _method in _methods.split():
        setattr(Work, f"__{_method}__", _refuse(_use))


class _Wakeups:
    """Wakes a loop's waiters from other threads, in order, with one wakeup of the loop for all that arrive together.

    Attributes:
        waking: futures that are still to be woken; later futures must queue behind them.
        waits: table of the waits on this loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waking: deque[asyncio.Future[None]] = deque()
        self.waits = slow_waits.LoopWaits(loop)
        self._is_scheduled = False

    def add(self, future: asyncio.Future[None]) -> None:
        self.waking.append(future)
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self.loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # the loop is closed, so no task waits on it

    def _wake(self) -> None:
        self._is_scheduled = False  # must precede the loop below, so that a later add schedules another wakeup
        while self.waking:
            future = self.waking.popleft()
            if not future.done():
                future.set_result(None)


class _ThreadState(threading.local):
    wakeups: _Wakeups | None = None
    steps: deque[Callable[[], None]] | None = None  # steps of ``_in_turn`` that are left; None if none is running


_per_thread = _ThreadState()


def _in_turn(step: Callable[[], None]) -> None:
    # Within a step of this thread, wait until that one has ended, because a chain of works may be long.
    if _per_thread.steps is not None:
        _per_thread.steps.append(step)
        return
    _per_thread.steps = steps = deque((step,))
    try:
        while steps:
            steps.popleft()()
    finally:
        _per_thread.steps = None


class Whole(Work[T]):
    """A work that ends when its parts do: a wait for it waits for the parts, and enforces their deadlines.

    Normally, a part's deadline is enforced only by a wait for that part, but here all waits are for the whole:
    tests/test_deadlines.py::test_every_composed_operation_keeps_its_deadline
    """

    def _open_parts(self) -> Sequence[Work[Any]]:
        raise NotImplementedError

    def _needs(self) -> slow_waits.Needs:
        return needs_of(self._open_parts())

    def _peer_activity(self) -> slow_waits.PeerActivity | None:
        return next((asked for work in self._open_parts() if (asked := work._peer_activity()) is not None), None)

    def _remaining(self) -> float | None:
        left = [part._remaining() for part in self._open_parts() if part._timeout is not None]
        return min((seconds for seconds in left if seconds is not None), default=None)

    def _expire(self) -> None:
        for part in self._open_parts():
            if part._timeout is not None and (left := part._remaining()) is not None and left <= _DUE_S:
                part._expire()


class Returnable(Work[T]):
    """A work whose outcome is returned to its origin if the last waiter is cancelled before taking it."""

    _interested = 0

    def _return(self) -> None:
        """Return the outcome to its origin, unless a waiter is interested in it or has taken it."""
        raise NotImplementedError

    def _waiting(self, *, abandon: bool) -> Generator[Any, Any, None]:
        self._interested += 1
        try:
            yield from super()._waiting(abandon=abandon)
        except BaseException:
            self._interested -= 1
            if abandon:
                self._return()
            raise
        self._interested -= 1

    def _wait_for_thread(self, timeout: float | None) -> None:
        self._interested += 1
        try:
            super()._wait_for_thread(timeout)
        finally:
            self._interested -= 1

    def _lose_interest(self) -> None:
        super()._lose_interest()
        self._return()


class _ThenWork(Whole[Any]):
    """The work returned by ``then``; ``first`` is the work that must end first, None once it has ended."""

    _was_taken = False  # whether the outcome was taken

    def __init__(self, first: Work[Any], follow: Callable[[], None]) -> None:
        super().__init__()
        self.first: Work[Any] | None = first
        self._follow_first: Callable[[], None] | None = follow
        self._timeout = first._timeout

    def _settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        self._follow_first = None  # break the reference cycle
        return super()._settle(value, error)

    def _abandon(self) -> None:
        first, follow = self.first, self._follow_first
        if first is not None and follow is not None and first._forget_waiter(follow):
            self._settle(error=ClosedError(f"the wait for {self._describe()} was given up"))
            _in_turn(first._lose_interest)

    def _result(self) -> Any:
        self._was_taken = True
        return super()._result()

    def __del__(self) -> None:
        # The first work's error counts as observed, because this work now holds it.
        # tests/test_work.py::test_an_error_that_then_has_got_and_nobody_hears_of_is_logged
        error = self._error
        needs_no_log = self._was_taken or self._pid != process.pid or isinstance(error, ClosedError)
        if error is not None and not needs_no_log:
            logger.error("failed, and was not awaited: what then() has called", exc_info=error)

    def _open_parts(self) -> Sequence[Work[Any]]:
        first = self.first
        while isinstance(first, _ThenWork) and (before := first.first) is not None:
            first = before
        return () if first is None else (first,)


class Part(Work[T]):
    """A part or view of an operation; when its last waiter leaves, the operation may be abandoned."""

    def __init__(self, whole: Work[Any]) -> None:
        super().__init__()
        self._pid = whole._pid
        self._whole = whole

    def _title(self) -> str:
        return self._whole._title()

    def _describe(self) -> str:
        return self._whole._describe()

    def _user_loop(self) -> asyncio.AbstractEventLoop | None:
        return self._whole._user_loop()

    @property
    def _kind(self) -> str:  # type: ignore[override]
        return self._whole._kind

    def _whom(self) -> str:
        return self._whole._whom()

    def _peer_activity(self) -> slow_waits.PeerActivity | None:
        return self._whole._peer_activity()

    def _needs(self) -> slow_waits.Needs:
        return self._whole._needs()

    def _left(self) -> None:
        self._whole._left()

    def _abandon(self) -> None:
        self._whole._lose_interest()


class _EndOfWork:
    def __init__(self, work: Work[Any]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work._waiting(abandon=False)


def needs_of(works: Iterable[Work[Any]]) -> slow_waits.Needs:
    """Return the needs of a wait for all these works."""
    found = [work._needs() for work in works]
    # If one target suffices for some part, the result cannot express that for this part alone, so it says that one
    # target suffices for the whole wait.
    every = all(every or len(targets) == 1 for targets, every in found)
    targets: dict[Target, None] = dict.fromkeys(target for targets, _ in found for target in targets)
    return list(targets), every


# Types for methods that return their result in code that may block, and a ``Work`` in coroutines. A type checker does
# not know where a method is called, so these types can be used like the value and can also be awaited. No object
# is an instance of these classes. For bool and arbitrary objects there can be no such type, so ``Any`` is used.

NoneOrWork: TypeAlias = Work[None]
"""The type of methods that block and return None; in a coroutine, or with ``async_op``, they return a ``Work``."""

BoolOrWork: TypeAlias = Any
"""A bool or, in a coroutine, a ``Work`` that resolves to it; ``Any``, because bool cannot be subclassed."""

ValueOrWork: TypeAlias = Any
"""Any object; in a coroutine, or with ``async_op``, a ``Work`` that resolves to it."""


class IntOrWork(int, Awaitable[int]):
    """An int; in a coroutine, a ``Work`` that resolves to it."""


class FloatOrWork(float, Awaitable[float]):
    """A float; in a coroutine, a ``Work`` that resolves to it."""


class ListOrWork(list[T], Awaitable[list[T]]):
    """A list; in a coroutine, a ``Work`` that resolves to it."""


class DictOrWork(dict[str, T], Awaitable[dict[str, T]]):
    """A dict; in a coroutine, a ``Work`` that resolves to it."""


def blocking(work: Work[T]) -> Any:
    """Return the work itself in code that must not block, such as a coroutine; elsewhere, wait and return its result.

    If a signal handler raises during the wait, the work is abandoned, because no other code holds it.
    """
    if not may_wait():
        return work
    try:
        # Check this before taking the result: a finished receive would take a message meant for the code that runs
        # after these waits.
        # tests/simulation/test_sim_restarts.py::test_a_hook_that_has_ended_takes_no_message_of_the_next_attempt
        check_ended()
        return work.wait()
    except BaseException:
        work._lose_interest()
        raise
