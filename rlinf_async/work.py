"""``Work``: a started operation that any thread or event loop may wait for; ``Part``: a piece or view of one."""

from __future__ import annotations

import asyncio
import threading
from asyncio import _get_running_loop as running_loop  # None where there is none, and no exception
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

_NOBODY: Final[list[Callable[[], None]]] = []
"""The waiters of all works that are done: a waiter is added to one that is not, under its lock."""

_DUE_S: Final = 0.001
"""A deadline that is no further away has passed: loops' timers fire early by less."""


class Work(Coroutine[Any, Any, T], Generic[T]):
    """An operation that has been started; awaiting it gives its result.

    It may be awaited several times, by several tasks, in several loops and threads, before or after it is done; every
    waiter gets the same result or the same error.  When the last waiter of an unfinished operation is cancelled, so is
    the operation; ``asyncio.shield(work)`` and ``work.async_wait()`` protect it.  It is a ``Coroutine``, so that
    ``TaskGroup.create_task`` takes it.  A forgotten ``await`` does not pass for a result: to compare it with one, to
    calculate with it, to index or iterate over it is a ``TypeError`` that says what to write, and so is its truth value
    until it is done.

    Example:
        work = worker.recv("actor", 0)       # in a coroutine: started, not waited for
        tensor = await work                  # or work.wait() in a thread without a running loop
    """

    _kind = "operation"
    """What it is, in one word, for the table of waits."""
    _ends_with_others = True
    """An unobserved error ends a plain ``wait()`` for it, where ``fail_fast`` is set."""
    _loop: asyncio.AbstractEventLoop | None = None
    _timeout: float | None = None
    """Seconds from ``_since`` on, by the monotonic clock, after which it is given up; None for no deadline, neither of
    its own nor, where it is a ``Whole``, of a part."""
    _since = 0.0
    _was_awaited = False
    """A wait for it has ended without the result."""
    _event = 0
    """Its number in the flight recorder, where its begin was recorded."""

    def __init__(self) -> None:
        self._pid = process.pid
        self._lock = threading.Lock()
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiters: list[Callable[[], None]] = []
        self._followers: list[Callable[[], None]] | None = None
        """Called at the end as waiters are, but they do not count as interest in the result."""
        self._drivers: dict[Any, Generator[Any, Any, T]] | None = None

    def __repr__(self) -> str:
        state = "done" if self._done else "not done"
        return f"<{self._title()} [{state}: {self._awaiting()}, or `.wait()`]>"

    # -- what subclasses say ------------------------------------------------------------------------------------

    def _describe(self) -> str:
        """What is awaited and from whom, for deadlines and warnings."""
        return "an operation"

    def _title(self) -> str:
        """What it is the result of that was not awaited."""
        return self._describe()

    def _awaiting(self) -> str:
        """The code by which a coroutine waits for the result, for messages about a wait that was forgotten."""
        return "`await` it"

    def _whom(self) -> str:
        """Who has to do something for it to end, for the table of waits; empty where that is not known."""
        return ""

    def _peer_activity(self) -> slow_waits.PeerActivity | None:
        """Asks daemons what those do who have to do something, in words; only for a word about a long wait."""
        return None

    def _needs(self) -> slow_waits.Needs:
        """Who has to act for it to end, for reports of the run; nobody where that is not known."""
        return [], True

    def _user_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop of the user's that has to turn for this to end; None where the framework runs what ends it."""
        return self._loop

    def _lose_interest(self) -> None:
        """Somebody who wanted the result does not any more; if nobody else waits, nobody does."""
        if self._pid != process.pid:
            return  # whether it goes on is decided in the process that has started it
        with self._lock:
            last = not self._waiters and not self._done
        if last:
            self._abandon()

    def _left(self) -> None:
        """A wait has ended without the result, which is there."""

    def _abandon(self) -> None:
        """Called when the last waiter was cancelled."""

    def _report_to(self, view: Work[Any], callback: Callable[[], None]) -> None:
        """Calls back at the end; who waits for the view waits for this."""
        with self._lock:
            if not self._done:
                self._waiters.append(callback)
                return
        callback()

    def _has_failed(self) -> bool:
        """Whether it is known to have ended with an error."""
        return self._error is not None

    def _cancel_after_failure(self) -> bool:
        """What this goes with has failed (``wait_all``): cancels it, whoever waits; False if it may go on for long."""
        self._abandon()
        return self._done

    def _result(self) -> T:
        """The outcome, in a waiter's thread."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        value: T = self._value
        return value

    # -- its own deadline ---------------------------------------------------------------------------------------

    def _limit(self, timeout: float | None) -> None:
        """Gives it a deadline, counted from now."""
        self._timeout, self._since = timeout, clock.monotonic()

    def _remaining(self) -> float | None:
        """Seconds to its deadline, not below 0; None without."""
        return None if self._timeout is None else max(0.0, self._since + self._timeout - clock.monotonic())

    def _time_left(self) -> float | None:
        """Seconds until it ends even if nobody acts; None where it does not."""
        return self._remaining()

    def _expire(self) -> None:
        """The deadline has passed while somebody waits: ends it with an error, now or once that error is explained."""
        self._settle(error=self._late(self._timeout))

    # -- settling -----------------------------------------------------------------------------------------------

    def _settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Finishes the operation and wakes everybody who waits.  False if it had been finished before."""
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
        """Whether the operation has ended, by a result or an error."""
        return self._done

    def _follow(self, callback: Callable[[], None]) -> None:
        """Calls back at the end, in the thread that settles it, or now; that is no interest in the result."""
        with self._lock:
            if not self._done:
                self._followers = [*(self._followers or ()), callback]
                return
        callback()

    def _forget_waiter(self, wake: Callable[[], None]) -> bool:
        """Takes a waiter out; False if it has been, or is being, woken."""
        with self._lock:
            is_there = wake in self._waiters
            if is_there:
                self._waiters.remove(wake)
            return is_there

    # -- waiting ------------------------------------------------------------------------------------------------

    def _check_process(self) -> None:
        """Raises:
        ForkedProcessError: this was started by the process that this one was forked from, and cannot end here.
        """
        if self._pid != process.pid and not self._done:
            raise self._inherited()

    def _inherited(self) -> ForkedProcessError:
        # The thread that held the lock when the process was forked is not there to release it, and the waiters are the
        # parent's: to wake one would write to an eventfd that both processes have.
        self._lock, self._waiters = threading.Lock(), []
        return process.forked(f"what is to finish {self._describe()}", self._pid)

    def _waiting(self, *, abandon: bool) -> Generator[Any, Any, None]:
        if self._pid != process.pid:
            raise self._inherited()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        wakeups = _here.wakeups
        if wakeups is None or wakeups.loop is not loop:
            wakeups = _here.wakeups = _Wakeups(loop)
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
        elif left is not None:  # the part with the first deadline has ended in time
            timers[:] = (loop.call_later(left, self._meet_deadline, loop, timers),)

    def __await__(self) -> Generator[Any, Any, T]:
        if not self._done:
            yield from self._waiting(abandon=True)
        return self._result()

    async def async_wait(self, timeout: float | None = None) -> T:
        """Waits without owning the operation: cancelling this wait leaves the operation running.

        Raises:
            DeadlineExceeded: ``timeout`` seconds have passed.
        """
        if not self._done:
            deadline = asyncio.timeout(timeout)
            try:
                async with deadline:
                    await _Waiting(self)
            except TimeoutError:
                if not deadline.expired():
                    raise
                raise self._late(timeout) from None
        return self._result()

    def wait(self, timeout: float | None = None) -> T:
        """Blocks the calling thread until the operation is done.  A deadline leaves the operation running.

        Raises:
            RuntimeError: called where a loop runs on this thread, which would block it; ``await`` instead.  Or in a
                function that was given to ``then``.
            DeadlineExceeded: ``timeout`` seconds have passed.
            ForkedProcessError: it was started by the process that this one was forked from.
            LoopNotRunning: the user's loop that has to turn for it is closed, or has not turned for some seconds.
            UnobservedFailure: a call that nothing awaits has failed, and the cluster was made with ``fail_fast``.
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
        """Seconds to its deadline or the caller's, whichever comes first; not below 0."""
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
                left = None  # until the error is explained
                continue
            left = self._time_to(began, timeout)
            if left is not None and left <= _DUE_S:
                raise self._late(timeout)

    def _wait_unless_others_fail(self, gate: Gate) -> None:
        def end() -> None:
            # A gate is opened once: by this, or by what settles the work and has taken its waiters.
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
        """A new work: ``function(*args, **kwargs)``, called once this one has succeeded, in the thread that settles it.

        That may be one which reads this process's sockets: there nothing blocks, and what would returns its ``Work``.
        An error of this work, or of the function, is the new work's error.
        """
        self._check_process()

        def follow() -> None:
            following.first = None  # its result is not kept for as long as this one
            try:
                self._result()
                value = function(*args, **kwargs)
            except BaseException as error:
                following._settle(error=error)
            else:
                following._settle(value)

        following = _Following(self, follow)
        following._loop = self._user_loop()
        with self._lock:
            if not self._done:
                self._waiters.append(follow)
                return following
        follow()
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
        return NotImplemented  # by identity: works stand in lists and are looked for there

    __hash__ = object.__hash__

    def __reduce__(self) -> Any:
        raise self._unawaited("sending it")

    def __format__(self, spec: str) -> str:
        if spec:
            raise self._unawaited(f"writing it as {spec!r}")
        return str(self)

    def _unawaited(self, use: str) -> TypeError:
        """The error of one who takes the work for its result."""
        return TypeError(
            f"{self._title()} is a Work and not its result: {self._awaiting()} (or `.wait()`) before {use}"
        )

    # -- the coroutine protocol, one generator per task that drives this object -----------------------------------

    def send(self, value: Any) -> Any:
        """Runs the current task's wait on, as the coroutine protocol has it; ``await`` calls it."""
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
        """Raises an error in the current task's wait, as the coroutine protocol has it; cancellation calls it."""
        drivers = self._drivers or {}
        task = asyncio.current_task()
        driver = drivers.get(task)
        if driver is None:  # a task that is cancelled before its first step
            self._lose_interest()
            driver = self.__await__()
        try:
            return driver.throw(error[-1] if isinstance(error[-1], BaseException) else error[0])
        except BaseException:
            drivers.pop(task, None)
            raise

    def close(self) -> None:
        """End the current task's wait, as the coroutine protocol has it; others' waits and the operation go on."""
        # A background task of a worker, for one, closes what it was given; another task's wait would never be woken.
        if self._drivers and running_loop() is not None and (driver := self._drivers.pop(asyncio.current_task(), None)):
            driver.close()


def _refuse(use: str) -> Callable[..., Any]:
    """A method in the place of one that a result may have: its caller has forgotten to wait."""

    def refuse(self: Work[Any], *_: Any) -> Any:
        raise self._unawaited(use)

    return refuse


# Not in the class, for type checkers are to find the same mistakes.  Where there is no ``__iter__``, ``__getitem__`` is
# what a loop comes to; a ``Handle`` has one of its own.
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
    """Wakeups of a loop's waiters from other threads: in order, and one wakeup of the loop for all that come at once.

    Attributes:
        waking: those who are to be woken and are not yet; nobody else may come before them.
        waits: what is waited for on this loop.
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
                pass  # that loop is closed, and with it whoever waited there

    def _wake(self) -> None:
        self._is_scheduled = False  # first: what is added now schedules again
        while self.waking:
            future = self.waking.popleft()
            if not future.done():
                future.set_result(None)


class _Here(threading.local):
    wakeups: _Wakeups | None = None


_here = _Here()


class Whole(Work[T]):
    """A work that ends with others: who waits for it waits for them, and sees to their deadlines.

    A part's deadline ends the part while somebody waits for that, and nobody does but by way of the whole:
    tests/test_deadlines.py::test_every_composed_operation_keeps_its_deadline
    """

    def _open_parts(self) -> Sequence[Work[Any]]:
        """The works whose ends it waits for now."""
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
    """A work whose outcome goes back if its last waiter is cancelled before it has it."""

    _interested = 0

    def _return(self) -> None:
        """Gives the outcome back, if it is here and nobody is interested in it or has had it."""
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


class _Following(Whole[Any]):
    """What ``then`` returns.

    Attributes:
        first: the work that has to end before; None once it has.
    """

    _was_heard = False
    """Somebody has got its outcome."""

    def __init__(self, first: Work[Any], follow: Callable[[], None]) -> None:
        super().__init__()
        self.first: Work[Any] | None = first
        self._follow_first: Callable[[], None] | None = follow
        self._timeout = first._timeout

    def _settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        self._follow_first = None  # a circle
        return super()._settle(value, error)

    def _abandon(self) -> None:
        first, follow = self.first, self._follow_first
        if first is not None and follow is not None and first._forget_waiter(follow):
            first._lose_interest()
            self._settle(error=ClosedError(f"the wait for {self._describe()} was given up"))

    def _result(self) -> Any:
        self._was_heard = True
        return super()._result()

    def __del__(self) -> None:
        # The error of the first work counts as heard, for it has come to here.
        # tests/test_work.py::test_an_error_that_then_has_got_and_nobody_hears_of_is_logged
        error = self._error
        is_told = self._was_heard or self._pid != process.pid or isinstance(error, ClosedError)
        if error is not None and not is_told:
            logger.error("failed, and was not awaited: what then() has called", exc_info=error)

    def _open_parts(self) -> Sequence[Work[Any]]:
        first = self.first
        return () if first is None else (first,)


class Part(Work[T]):
    """A piece, or another view, of an operation: whoever is the last to wait for it gives the operation up."""

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


class _Waiting:
    """Awaits the end of a work without owning it."""

    def __init__(self, work: Work[Any]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work._waiting(abandon=False)


def needs_of(works: Iterable[Work[Any]]) -> slow_waits.Needs:
    """What a wait for the ends of all these works needs."""
    found = [work._needs() for work in works]
    # That one of several is enough for a part cannot be said of it alone: then it is said of the whole.
    every = all(every or len(targets) == 1 for targets, every in found)
    targets: dict[Target, None] = dict.fromkeys(target for targets, _ in found for target in targets)
    return list(targets), every


# Types of what a method returns that gives its result where it may block, and a ``Work`` of it in coroutines.  A
# checker does not know where it is called, so the type can be used as the value, and awaited for the value.  No object
# is of one of these classes.  Of a bool, or of an object of any kind, that cannot be said: there it is ``Any``.

NoneOrWork: TypeAlias = Work[None]
"""None, after the wait; in a coroutine, and with ``async_op``, a ``Work``.  Only there it has methods."""

BoolOrWork: TypeAlias = Any
"""A bool, of which there are no subclasses; in a coroutine a ``Work`` of it."""

ValueOrWork: TypeAlias = Any
"""Any object; in a coroutine, and with ``async_op``, a ``Work`` of it."""


class IntOrWork(int, Awaitable[int]):
    """An int; in a coroutine a ``Work`` of it."""


class FloatOrWork(float, Awaitable[float]):
    """A float; in a coroutine a ``Work`` of it."""


class ListOrWork(list[T], Awaitable[list[T]]):
    """A list; in a coroutine a ``Work`` of it."""


class DictOrWork(dict[str, T], Awaitable[dict[str, T]]):
    """A dict; in a coroutine a ``Work`` of it."""


def blocking(work: Work[T]) -> Any:
    """The work itself where nothing may block, as in a coroutine, which awaits it; its result elsewhere.

    Where the wait is interrupted, by a signal's handler that raises, nobody has the work any more: it is given up.
    """
    if not may_wait():
        return work
    try:
        # Before the result: a receive that is done already would take a message of whoever comes after these waits.
        # tests/simulation/test_sim_restarts.py::test_a_hook_that_has_ended_takes_no_message_of_the_next_attempt
        check_ended()
        return work.wait()
    except BaseException:
        work._lose_interest()
        raise
