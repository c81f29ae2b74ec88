"""Waits that work in any loop and thread: for a condition, and at the gate between the weights' readers and writers.

reading()  any number at a time, in any task and thread
writing()  one at a time, without readers; readers that arrive while a writer waits or writes must wait their turn
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from rlinf_async._core import clock
from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._waits import slow_waits
from rlinf_async.errors import DeadlineExceeded
from rlinf_async.work import Work


class ConditionVar:
    """A condition variable for waits in any loop; ``notify``, from any thread, makes all waits check their conditions.

    Args:
        model: name of the weights, for reports on the run.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._waits = 0
        self._awaited: list[str] = []
        """Descriptions of the awaited events."""
        self._next = _Notification(model, self._awaited)

    def notify(self) -> None:
        """Make all waits check their conditions."""
        with self._lock:
            if not self._waits:
                return
            current, self._next = self._next, _Notification(self._model, self._awaited)
        current._settle()

    async def wait_until(self, condition: Callable[[], bool], timeout: float | None = None, what: str = "") -> bool:
        """Wait until the condition is true, checked after every change; return False after ``timeout`` seconds.

        Args:
            what: description of the awaited event.
        """
        begun = clock.monotonic()
        with self._lock:  # before the first check, so that no later change is missed
            self._waits += 1
        if what:
            self._awaited.append(what)
        try:
            while True:
                with self._lock:
                    change = self._next
                if condition():
                    return True
                if (remaining := clock.rest(timeout, begun)) == 0:
                    return False
                with contextlib.suppress(DeadlineExceeded):
                    await change.async_wait(remaining)
        finally:
            with self._lock:
                self._waits -= 1
            if what:
                self._awaited.remove(what)


class _Notification(Work[None]):
    _kind = "weights"

    def __init__(self, model: str, awaited: Sequence[str]) -> None:
        super().__init__()
        self._model = model
        self._awaited = awaited

    def _describe(self) -> str:
        return ", ".join(dict.fromkeys(self._awaited)) or f"news of the weights '{self._model}'"

    def _needs(self) -> slow_waits.Needs:
        return [Target(TargetKind.WEIGHTS, name=self._model)], True


class _Pass(Work[None]):
    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.writes = writes

    def _describe(self) -> str:
        return "the turn to apply new weights" if self.writes else "the turn to read the weights"

    def _needs(self) -> slow_waits.Needs:
        return [Target(TargetKind.LOCAL)], True


class Reading:
    """One block of reading: ``async with`` or ``with``; its value is the version being read.

    A reader inside another block of the same task enters immediately, even while a writer waits.

    Args:
        first: awaitable to wait for before entering; its error is raised.
        owner: object to keep alive until the block ends, because it may own the memory being read.
    """

    def __init__(
        self, gate: ReadingGate, timeout: float | None, first: Work[Any] | None = None, *, owner: Any = None
    ) -> None:
        self._gate = gate
        self._owner = owner
        self._timeout = timeout
        self._first = first
        self._token: contextvars.Token[Reading | None] | None = None
        self.is_open = False

    async def __aenter__(self) -> int:
        begun = clock.monotonic()
        if self._first is not None:
            await self._first.async_wait(self._timeout)
        turn = self._ask()
        if turn is not None:
            try:
                await turn.async_wait(clock.rest(self._timeout, begun))
            except BaseException:
                self._gate._withdraw(turn)
                raise
        return self._enter()

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__()

    def __enter__(self) -> int:
        begun = clock.monotonic()
        if self._first is not None:
            self._first.wait(self._timeout)
        turn = self._ask()
        if turn is not None:
            try:
                turn.wait(clock.rest(self._timeout, begun))
            except BaseException:
                self._gate._withdraw(turn)
                raise
        return self._enter()

    def __exit__(self, *exc_info: object) -> None:
        self.is_open = False
        if self._token is not None:
            with contextlib.suppress(ValueError):  # the block may not end in the context in which it began
                self._gate._here.reset(self._token)
        self._gate._leave(writes=False)
        self._owner = None  # a task started in the block keeps this object alive through its context

    def _ask(self) -> _Pass | None:
        if self.is_open:
            raise RuntimeError("this reading() is open already: each `with` takes one of its own")
        return self._gate._ask(writes=False, outer=self._gate._here.get())

    def _enter(self) -> int:
        self.is_open = True
        self._token = self._gate._here.set(self)
        try:
            return self._gate._look()
        except BaseException:
            self.__exit__()
            raise


class ReadingGate:
    """A gate between readers and writers of the weights, for any loop and thread.

    Args:
        look: called when a reader enters; returns the version, or raises the reader's error.
    """

    def __init__(self, look: Callable[[], int]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._readers = 0
        self._writes = False
        self._waiting: deque[_Pass] = deque()
        self._here: contextvars.ContextVar[Reading | None] = contextvars.ContextVar("reading", default=None)

    def __repr__(self) -> str:
        state = "writing" if self._writes else f"{self._readers} reading"
        return f"<ReadingGate [{state}, {len(self._waiting)} waiting]>"

    def reading(self, timeout: float | None = None) -> Reading:
        """Return a ``with`` or ``async with`` block in which no update is applied; its value is the version.

        Raises:
            DeadlineExceeded: on entering: the reader's turn did not come within ``timeout`` seconds.
        """
        return Reading(self, timeout)

    def is_read_here(self) -> bool:
        """True if the caller is itself inside a reading() block, so that waiting for readers would never end."""
        outer = self._here.get()
        return outer is not None and outer.is_open

    @contextlib.asynccontextmanager
    async def writing(self, timeout: float | None = None) -> AsyncIterator[None]:
        """Return an ``async with`` block in which there are no readers.

        Raises:
            DeadlineExceeded: readers have not left within ``timeout`` seconds.
        """
        turn = self._ask(writes=True)
        if turn is not None:
            try:
                await turn.async_wait(timeout)
            except DeadlineExceeded as late:
                self._withdraw(turn)
                raise DeadlineExceeded(f"{late}: a reader has not left its reading() block") from None
            except BaseException:
                self._withdraw(turn)
                raise
        try:
            yield
        finally:
            self._leave(writes=True)

    # -- turns -----------------------------------------------------------------------------------------------------

    def _ask(self, *, writes: bool, outer: Reading | None = None) -> _Pass | None:
        """Take the turn, or return a pass with which to wait for it.

        Args:
            outer: the reader's enclosing block; while it is open, no writer runs.
        """
        with self._lock:  # another thread that leaves the outer block marks it closed, then takes the lock
            at_once = outer is not None and outer.is_open
            if at_once or not (self._writes or self._waiting or (writes and self._readers)):
                self._take(writes)
                return None
            turn = _Pass(writes)
            self._waiting.append(turn)
            return turn

    def _take(self, writes: bool) -> None:
        if writes:
            self._writes = True
        else:
            self._readers += 1

    def _withdraw(self, turn: _Pass) -> None:
        """Stop waiting; give up a turn that has already come."""
        with self._lock:
            waits = turn in self._waiting
            if waits:
                self._waiting.remove(turn)
        if waits:
            self._next()
        else:
            self._leave(writes=turn.writes)

    def _leave(self, *, writes: bool) -> None:
        with self._lock:
            if writes:
                self._writes = False
            else:
                self._readers -= 1
        self._next()

    def _next(self) -> None:
        """Wake all waiters at the head of the queue whose turn has come."""
        coming: list[Any] = []
        with self._lock:
            while self._waiting and not self._writes and not (self._waiting[0].writes and self._readers):
                turn = self._waiting.popleft()
                self._take(turn.writes)
                coming.append(turn)
        for turn in coming:
            turn._settle()
