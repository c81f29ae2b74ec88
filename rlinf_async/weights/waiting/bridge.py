"""Coroutines behind methods that block where no loop runs, and return a ``Work`` where one does."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import selectors
import threading
import weakref
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rlinf_async._client.tasks import Task, Tasks
from rlinf_async.work import Work


class Bridge:
    """What one end of a synchronisation runs its coroutines with; owns their tasks.

    In a coroutine, ``run`` starts a task of the loop that runs there.  Elsewhere it blocks: the coroutine runs in the
    calling thread, on a loop that this bridge keeps for that purpose and that stands still in between.  One thread at a
    time; ``wait`` is for what only waits, while another thread runs what it waits for.

    A forked process has loops of its own, and ends its copies without a word to its parent's.
    """

    def __init__(self) -> None:
        self._tasks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Tasks] = weakref.WeakKeyDictionary()
        self._blocking = _Blocking()

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
        if self._blocking.pid != os.getpid():  # forked: another thread may have had the lock, and the loop is a copy
            self._blocking = _Blocking()
        blocking = self._blocking
        with blocking.lock:
            if blocking.runner is None:
                blocking.runner = asyncio.Runner(loop_factory=_new_loop)
                weakref.finalize(self, _close, blocking.runner, blocking.pid)
            return blocking.runner.run(coroutine, context=contextvars.copy_context())

    def release(self) -> None:
        """Gives back the loop for blocking calls, unless one runs there, or is about to."""
        blocking = self._blocking
        if blocking.lock.acquire(blocking=False):
            try:
                if blocking.runner is not None:
                    _close(blocking.runner, blocking.pid)
                    blocking.runner = None
            finally:
                blocking.lock.release()


class _Blocking:
    """What one process blocks with."""

    def __init__(self) -> None:
        self.pid = os.getpid()
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


def _close(runner: asyncio.Runner, pid: int) -> None:
    with contextlib.suppress(RuntimeError):  # it is closed already
        # Where a loop runs nothing can be awaited by blocking; in a forked process its tasks are the parent's.
        if pid == os.getpid() and running_loop() is None:
            runner.close()
        elif not (loop := runner.get_loop()).is_running():
            loop.close()


class Turns:
    """Coroutines of a bridge that run one after another, also where one between two others is cancelled."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._works: dict[Task, int] = {}
        """All that have not ended, and their loops' threads: if the last was cancelled, those before it may go on."""

    def run(self, begin: Callable[[], Coroutine[Any, Any, Any]], what: str) -> Any:
        """As ``Bridge.run``; it begins once those before it in coroutines have ended.

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
        work = self._bridge.run(_begin_after([*before], begin), what)
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
