"""Execution of coroutines for callers that block, and of functions that would block a loop in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import selectors
import threading
import weakref
from asyncio import _get_running_loop as running_loop
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from rlinf_async._client.tasks import Task, Tasks
from rlinf_async.errors import ClosedError
from rlinf_async.weights.waiting.ownership import OwnerProcess, reset_in_children
from rlinf_async.work import Work


class SyncAdapter:
    """What one end of a synchronisation runs its coroutines with; owns their tasks.

    In a coroutine, ``run`` starts a task of the loop that runs there.  Elsewhere it blocks: the coroutine runs in the
    calling thread, on a loop that this bridge keeps for that purpose and that stands still in between.  One thread at a
    time; ``wait`` is for what only waits, while another thread runs what it waits for.

    A forked process has loops of its own, and ends its copies without a word to its parent's.
    """

    def __init__(self) -> None:
        self._tasks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Tasks] = weakref.WeakKeyDictionary()
        self._reset()
        reset_in_children(self)

    def _reset(self) -> None:
        self._blocking = _BlockingLoop()

    def run(self, coroutine: Coroutine[Any, Any, Any], what: str, *, abandonable: bool = True) -> Any:
        """Starts it.

        Args:
            abandonable: its last waiter, if cancelled, cancels it.

        Returns:
            In a coroutine a ``Work``; elsewhere the result.
        """
        loop = running_loop()
        if loop is None:
            return self._block(coroutine)
        tasks = self._tasks.get(loop)
        if tasks is None:
            tasks = self._tasks[loop] = Tasks(loop, _on(loop))
        work = tasks.run(coroutine, what, abandonable=abandonable)
        work._loop = loop
        return work

    def wait(self, coroutine: Coroutine[Any, Any, Any], what: str) -> Any:
        """Starts one that changes nothing; elsewhere than in a coroutine it holds up no other thread."""
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
        """Gives back the loop for blocking calls, unless one runs there, or is about to."""
        blocking = self._blocking
        if blocking.lock.acquire(blocking=False):
            try:
                if blocking.runner is not None:
                    _close(blocking.runner, OwnerProcess())
                    blocking.runner = None
            finally:
                blocking.lock.release()


class _BlockingLoop:
    """What one process blocks with."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runner: asyncio.Runner | None = None


def _new_loop() -> asyncio.AbstractEventLoop:
    """One that shares nothing with the loops of forked processes, which an epoll would."""
    return asyncio.SelectorEventLoop(selectors.PollSelector())


def _on(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    def call(callback: Callable[[], None]) -> None:
        if running_loop() is loop:
            callback()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks with it
                loop.call_soon_threadsafe(callback)

    return call


def _close(runner: asyncio.Runner, process: OwnerProcess) -> None:
    with contextlib.suppress(RuntimeError):  # it is closed already
        # Where a loop runs nothing can be awaited by blocking; in a forked process its tasks are the parent's.
        if process.is_here and running_loop() is None:
            runner.close()
        elif not (loop := runner.get_loop()).is_running():
            loop.close()


class Turns:
    """Coroutines of a bridge that run one after another, also where one between two others is cancelled."""

    def __init__(self, adapter: SyncAdapter) -> None:
        self._adapter = adapter
        self._works: dict[Task, int] = {}
        """All that have not ended, and their loops' threads: if the last was cancelled, those before it may go on."""

    def run(self, begin: Callable[[], Coroutine[Any, Any, Any]], what: str) -> Any:
        """As ``SyncAdapter.run``; it begins once those before it in coroutines have ended.

        Raises:
            RuntimeError: it would block the thread on whose loop one of those goes on.
        """
        before = self._works = self._running
        # A worker's ``def`` method, for one, after an ``async def`` one that was cancelled while weights were packed.
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
        """True if one goes on that was not cancelled."""
        return any(not work._cancelled for work in self._running)

    @property
    def is_ending(self) -> bool:
        """True if those that go on were cancelled."""
        return bool(self._running) and not self.is_taken


async def _begin_after(before: Sequence[Work[Any]], begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    for work in before:
        with contextlib.suppress(Exception):
            await work.async_wait()
    return await begin()


def at_once() -> Any:
    """Return the result of a method that has nothing to wait for: None; in a coroutine a ``Work`` of it."""
    if running_loop() is None:
        return None
    work: Work[None] = Work()
    work._settle()
    return work


_AT_ONCE: Final = 1 << 20
"""Bytes that are copied sooner than a thread is asked to."""

T = TypeVar("T")


class ProcessEnds(ClosedError):
    """This process is ending, and starts nothing any more."""


class WorkerThread:
    """Does one thing after the other, in a thread that is there once there is something to do.

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
        """Calls a function, in the thread if it copies so much that the loop should go on meanwhile.

        Nobody can stop it: a cancellation is passed on once it is over.

        Args:
            nbytes: that it copies; None: it waits for others too.

        Raises:
            asyncio.CancelledError: with what the function raised, if it did, as its cause.
            ProcessEnds: the interpreter starts nothing in a thread any more.
        """
        if nbytes is not None and nbytes <= _AT_ONCE:
            return function(*args)
        with self._lock:  # whoever closes it closes it behind this
            try:
                future = asyncio.get_running_loop().run_in_executor(self._thread(), function, *args)
            except RuntimeError as error:
                raise ProcessEnds(f"{self.label}: this process ends") from error
        return await outlast(future)

    async def wait(self) -> None:
        """Waits for the end of what is being done and what is to be done."""
        with self._lock:
            executor = self._executor
            last = None if executor is None else executor.submit(_nothing)
        if last is not None:
            await outlast(asyncio.wrap_future(last))

    def start(self, function: Callable[..., None], *args: Any, nbytes: int | None) -> None:
        """Has something done that nobody waits for, and that raises nothing; from any thread.  Not once it is closed.

        Args:
            nbytes: as of ``do``.
        """
        if nbytes is not None and nbytes <= _AT_ONCE:
            function(*args)
            return
        with self._lock:
            if not self._is_closed:
                self._thread().submit(function, *args)

    async def end(self) -> None:
        """As ``close``, and holds up no loop."""
        try:
            await self.wait()
        finally:
            self.close()

    def _thread(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix=self.label)
        return self._executor

    def close(self) -> None:
        """Waits for the end of what is being done."""
        with self._lock:
            executor, self._executor, self._is_closed = self._executor, None, True
        if executor is not None:
            executor.shutdown()


def _nothing() -> None:
    pass


async def outlast(ending: Awaitable[T]) -> T:
    """Await something that nobody can stop; pass a cancellation on once it is over.

    Raises:
        asyncio.CancelledError: with what went wrong there, if something did, as its cause.
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
    """Check ``timeout=`` of a method that may block.

    Raises:
        TypeError: ``timeout=`` is neither a number nor None, which stands for what the method says.
        ValueError: it is negative, or not a number at all.
    """
    if timeout is None:
        return
    if isinstance(timeout, bool) or not hasattr(type(timeout), "__float__"):
        raise TypeError(f"timeout= takes seconds, or None; got {timeout!r}")
    if not timeout >= 0:  # nan is not either
        raise ValueError(f"timeout= takes seconds, at least 0; got {timeout!r}")
