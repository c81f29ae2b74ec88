"""Runners for the coroutines of blocking callers, and for blocking functions in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import selectors
import threading
import weakref
from asyncio import _get_running_loop as running_loop
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from rlinf_async._client.tasks import Task, Tasks
from rlinf_async._core.failures import text_of, type_name_of
from rlinf_async.errors import ClosedError
from rlinf_async.weights.waiting.ownership import OwnerProcess, reset_in_children
from rlinf_async.work import Work


class SyncAdapter:
    """A runner for methods that return a ``Work`` in a coroutine and block elsewhere; it owns their tasks.

    In a coroutine, ``run`` starts a task on the running loop. Elsewhere it blocks: the coroutine runs in the calling
    thread, on a loop that this adapter keeps and that is idle between calls. Only one thread at a time may ``run``;
    ``wait`` is for coroutines that only wait while another thread runs the awaited work.

    A forked child has its own loops, and drops its copies without affecting the parent's loops.
    """

    def __init__(self) -> None:
        self._tasks: dict[asyncio.AbstractEventLoop, Tasks] = {}
        self._reset()
        reset_in_children(self)

    def _reset(self) -> None:
        self._blocking = _BlockingLoop()

    def run(self, coroutine: Coroutine[Any, Any, Any], what: str, *, abandonable: bool = True) -> Any:
        """Start a coroutine.

        Args:
            abandonable: cancel the coroutine when its last waiter is cancelled.

        Returns:
            In a coroutine, a ``Work``; elsewhere the result.
        """
        loop = running_loop()
        if loop is None:
            return self._block(coroutine)
        tasks = self._tasks.get(loop)
        if tasks is None:
            for closed in [each for each in self._tasks.copy() if each.is_closed()]:
                self._tasks.pop(closed, None)
            tasks = self._tasks[loop] = Tasks(loop, _on(loop))
        work = tasks.run(coroutine, what, abandonable=abandonable)
        work._loop = loop
        return work

    def wait(self, coroutine: Coroutine[Any, Any, Any], what: str) -> Any:
        """Start a coroutine that only waits; outside coroutines, it does not block other threads."""
        if running_loop() is not None:
            return self.run(coroutine, what)
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            return runner.run(coroutine)

    def _block(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        blocking = self._blocking
        with blocking.lock:
            if blocking.runner is None:
                blocking.runner = asyncio.Runner(loop_factory=_new_loop)
                weakref.finalize(self, _close, blocking.runner, OwnerProcess())
            return blocking.runner.run(coroutine, context=contextvars.copy_context())

    def release(self) -> None:
        """Close the loop for blocking calls, unless a call is running on it or is about to."""
        blocking = self._blocking
        if blocking.lock.acquire(blocking=False):
            try:
                if blocking.runner is not None:
                    _close(blocking.runner, OwnerProcess())
                    blocking.runner = None
            finally:
                blocking.lock.release()


class _BlockingLoop:
    """One process's loop for blocking calls."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runner: asyncio.Runner | None = None


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that shares no state with forked processes' loops, unlike an epoll-based loop."""
    return asyncio.SelectorEventLoop(selectors.PollSelector())


def _on(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    def call(callback: Callable[[], None]) -> None:
        if running_loop() is loop:
            callback()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks have ended with it
                loop.call_soon_threadsafe(callback)

    return call


def _close(runner: asyncio.Runner, process: OwnerProcess) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is already closed
        # A thread with a running loop cannot run another loop; in a forked child, the tasks belong to the parent.
        if process.is_here and running_loop() is None:
            runner.close()
        elif not (loop := runner.get_loop()).is_running():
            loop.close()


class Turns:
    """The coroutines of an adapter that run one at a time, in order, even if some are cancelled."""

    def __init__(self, adapter: SyncAdapter) -> None:
        self._adapter = adapter
        self._works: dict[Task, int] = {}
        """Maps each unfinished coroutine to its loop's thread; cancelling a coroutine does not end earlier ones."""

    def run(self, begin: Callable[[], Coroutine[Any, Any, Any]], what: str) -> Any:
        """Start a coroutine, as ``SyncAdapter.run`` does, once the earlier coroutines have ended.

        Raises:
            RuntimeError: it would block the thread whose loop runs an earlier coroutine.
        """
        before = self._works = self._running
        # Example: a worker runs a ``def`` method after an ``async def`` method was cancelled while packing weights.
        if running_loop() is None and threading.get_ident() in before.values():
            raise RuntimeError(
                f"{what} would block the event loop of this thread, on which one before it has not ended: "
                "do it in an `async def` method, or await the one before it first"
            )
        work = self._adapter.run(_begin_after([*before], begin), what)
        if isinstance(work, Task):
            self._works = {**before, work: threading.get_ident()}
        return work

    @property
    def _running(self) -> dict[Task, int]:
        return {work: thread for work, thread in self._works.items() if not work.done()}

    @property
    def is_taken(self) -> bool:
        """True if a coroutine that was not cancelled is running."""
        return any(not work._cancelled for work in self._running)

    @property
    def is_ending(self) -> bool:
        """True if only cancelled coroutines are running."""
        return bool(self._running) and not self.is_taken


async def _begin_after(before: Sequence[Work[Any]], begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    for work in before:
        with contextlib.suppress(Exception):
            await work.async_wait()
    return await begin()


def at_once() -> Any:
    """Return the result of a method that does not wait: None or, in a coroutine, a completed ``Work``."""
    if running_loop() is None:
        return None
    work: Work[None] = Work()
    work._settle()
    return work


_AT_ONCE: Final = 1 << 20
"""Size in bytes below which a copy is faster than waking a thread."""

T = TypeVar("T")


class ProcessEnds(ClosedError):
    """The process is exiting, and cannot start threads any more."""


class WorkerThread:
    """A runner for functions, one at a time, in a thread that is started on demand.

    Attributes:
        label: the thread's name.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._is_closed = False
        self._reset()
        reset_in_children(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    async def do(self, function: Callable[..., T], *args: Any, nbytes: int | None) -> T:
        """Call a function, in the thread if it copies so much that it would block the loop.

        The function cannot be stopped, so a cancellation is raised once it has returned.

        Args:
            nbytes: size of the function's copy in bytes; None if the function also waits.

        Raises:
            asyncio.CancelledError: the caller was cancelled; its cause is the function's error, if any.
            ProcessEnds: the interpreter cannot start threads any more.
        """
        if nbytes is not None and nbytes <= _AT_ONCE:
            return call_safely(function, *args)
        with self._lock:  # a close waits until this is submitted
            try:
                future = asyncio.get_running_loop().run_in_executor(self._thread(), call_safely, function, *args)
            except RuntimeError as error:
                if "shutdown" not in str(error):  # no thread can start for now
                    raise
                raise ProcessEnds(f"{self.label}: this process ends") from error
        return await outlast(future)

    async def wait(self) -> None:
        """Wait for all started functions."""
        with self._lock:
            executor = self._executor
            last = None if executor is None else executor.submit(_nothing)
        if last is not None:
            await outlast(asyncio.wrap_future(last))

    def start(self, function: Callable[..., None], *args: Any, nbytes: int | None) -> None:
        """Start a function, which must not raise, without waiting for its end. Do nothing after ``close``. Thread-safe.

        Args:
            nbytes: as for ``do``.
        """
        if nbytes is not None and nbytes <= _AT_ONCE:
            function(*args)
            return
        with self._lock:
            if not self._is_closed:
                self._thread().submit(function, *args)

    async def end(self) -> None:
        """Close the thread without blocking the loop."""
        try:
            await self.wait()
        finally:
            self.close()

    def _thread(self) -> ThreadPoolExecutor:
        if self._executor is None:
            executor = ThreadPoolExecutor(1, thread_name_prefix=self.label)
            # Start the thread before its first function is submitted: a function whose submission fails for lack of a
            # thread stays in the queue, and would run before the next one.
            executor.submit(_nothing)
            self._executor = executor
        return self._executor

    def close(self) -> None:
        """Wait for all started functions, and end the thread."""
        with self._lock:
            executor, self._executor, self._is_closed = self._executor, None, True
        if executor is not None:
            executor.shutdown()


def _nothing() -> None:
    pass


def call_safely(function: Callable[..., T], *args: Any) -> T:
    """Call a function that may be a user's; raise an error that only fails the coroutine that awaits it."""
    try:
        return function(*args)
    except BaseException as error:
        # A cancellation would end the coroutine's task, and an exit would end its loop. asyncio never passes a
        # StopIteration on, and takes the error of a cancelled future in the function for a cancellation of the caller.
        signals = (KeyboardInterrupt, SystemExit) if threading.current_thread() is threading.main_thread() else ()
        if isinstance(error, (Exception, *signals)) and not isinstance(error, StopIteration | CancelledError):
            raise
        raise RuntimeError(f"{type_name_of(type(error))} was raised: {text_of(error)}") from error


async def outlast(ending: Awaitable[T]) -> T:
    """Await an uninterruptible operation; raise a cancellation once it has ended.

    Raises:
        asyncio.CancelledError: the caller was cancelled; its cause is the operation's error, if any.
    """
    future = asyncio.ensure_future(ending)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from future.exception()
    return future.result()


def check_seconds(timeout: Any) -> None:
    """Check the ``timeout=`` of a method that may block.

    Raises:
        TypeError: ``timeout=`` is neither a number nor None.
        ValueError: it is negative or NaN.
    """
    if timeout is None:
        return
    if isinstance(timeout, bool) or not hasattr(type(timeout), "__float__"):
        raise TypeError(f"timeout= takes seconds, or None; got {timeout!r}")
    if not timeout >= 0:  # written so that NaN is refused, too
        raise ValueError(f"timeout= takes seconds, at least 0; got {timeout!r}")
