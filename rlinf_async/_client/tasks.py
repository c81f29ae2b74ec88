"""Runs the framework's coroutines on a client's loop, each as a ``Work``, and cancels them when the client ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable, Coroutine
from typing import Any

from rlinf_async._client import peer_activity
from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._waits import loop_watch, slow_waits, user_code
from rlinf_async.errors import ClosedError, ForkedProcessError
from rlinf_async.work import Work, needs_of

OnLoop = Callable[[Callable[[], None]], None]


class Task(Work[Any]):
    """A coroutine that runs on the client's loop, as an awaitable ``Work``."""

    _kind = "task"

    def __init__(self, on_loop: OnLoop, what: str, abandonable: bool) -> None:
        super().__init__()
        self._on_loop = on_loop
        self._what = what
        self._abandonable = self._ends_with_others = abandonable
        self._task: asyncio.Task[Any] | None = None
        self._thread: int | None = None
        self._cancelled = False

    def _describe(self) -> str:
        return self._what

    def _peer_activity(self) -> Work[str] | None:
        return None if self._task is None else peer_activity.through(self._awaited())

    def _needs(self) -> slow_waits.Needs:
        """Return what the coroutine waits for; if unknown, its own daemon, because framework code is running."""
        targets, every = needs_of(self._awaited())
        return (targets, every) if targets else ([Target(TargetKind.DAEMON, name=self._what)], True)

    def _time_left(self) -> float | None:
        left = (super()._time_left(), None if self._task is None else user_code.time_left(self._task))
        return min((seconds for seconds in left if seconds is not None), default=None)

    def _awaited(self) -> list[Work[Any]]:
        futures = () if self._task is None else user_code.futures_of(self._task)
        return [work for future in futures if (work := slow_waits.work_on(future)) is not None]

    def follow(self, task: asyncio.Task[Any]) -> None:
        """Bind this to the asyncio task that runs the coroutine."""
        self._task, self._thread = task, threading.get_ident()
        task.add_done_callback(self._finished)
        if self._cancelled:
            task.cancel()

    def _finished(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._settle(error=ClosedError(f"{self._what} was given up"))
            return
        error = task.exception()
        if error is not None and not isinstance(error, Exception):
            # A KeyboardInterrupt has ended the loop's run. Raised again by later waits, it would end their runs, too.
            error = ClosedError(f"{self._what} was interrupted")
        self._settle(None if error else task.result(), error)

    def cancel(self) -> None:
        def cancel() -> None:
            self._cancelled = True
            if self._task is not None:
                self._task.cancel()

        with contextlib.suppress(ClosedError, ForkedProcessError):
            self._on_loop(cancel)

    def _abandon(self) -> None:
        if self._abandonable:
            self.cancel()

    def _wait_for_thread(self, timeout: float | None) -> None:
        if self._task is not None:
            loop_watch.check_open(self._task.get_loop(), self._describe)
        # A worker's ``def`` method runs on the thread of the loop on which an ``async def`` method started this task.
        # The method blocks that loop, so the wait would never end: tests/weights/waiting/test_bridge.py::
        # test_a_wait_does_not_block_the_loop_that_its_work_needs
        if running_loop() is None and self._thread == threading.get_ident():
            raise RuntimeError(
                f".wait() would block the event loop of this thread, on which {self._what} goes on: `await` it in an "
                "`async def` method"
            )
        super()._wait_for_thread(timeout)


class Tasks:
    """The tasks of one loop, all awaited by their owner.

    Args:
        on_loop: calls a function on the loop, from any thread; raises ``ClosedError`` once the loop is closed, and
            ``ForkedProcessError`` in a forked child, which lacks the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_loop: OnLoop) -> None:
        self._loop = loop
        self._on_loop = on_loop
        self._running: set[asyncio.Task[Any]] = set()
        self._unstarted: dict[Task, Coroutine[Any, Any, Any]] = {}
        self._is_over = False

    def run(self, coroutine: Coroutine[Any, Any, Any], what: str, abandonable: bool) -> Task:
        """Start a coroutine, from any thread. Raises like ``on_loop``."""
        work = Task(self._on_loop, what, abandonable)

        def start() -> None:
            if self._is_over:  # a new task would be cancelled before its first step
                return
            self._unstarted.pop(work, None)
            task = self._loop.create_task(coroutine)
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            work.follow(task)

        self._unstarted[work] = coroutine
        try:
            self._on_loop(start)
        except BaseException:
            self._unstarted.pop(work, None)
            coroutine.close()
            raise
        return work

    def start_no_more(self) -> None:
        """Start no more tasks, because the loop is about to end; later tasks fail in ``loop_ended``. Thread-safe."""
        self._is_over = True

    def loop_ended(self) -> None:
        """Fail the tasks that were never started. Call this after ``settle``, once the loop is closed."""
        while self._unstarted:
            work, coroutine = self._unstarted.popitem()
            coroutine.close()
            work._settle(error=ClosedError(f"{work._what} was given up: the cluster is closed"))

    async def settle(self) -> None:
        """Cancel all running tasks, repeatedly if necessary, and wait until they have ended."""
        current = asyncio.current_task()
        while tasks := [task for task in self._running if task is not current]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)
