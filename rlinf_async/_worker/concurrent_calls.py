"""``ConcurrentCalls``: runs a worker's ``@concurrent`` methods on a loop in a thread that the first call starts.

The main thread belongs to user code, and its loop is blocked while a ``def`` method runs; the socket thread must never
run user code. So calls that overtake a ``def`` method need a third thread::

    any thread          submit(call) ── call_soon_threadsafe ──► start(call, loop): a task; None if it was cancelled
    any thread          cancel(call) ── call_soon_threadsafe ──► after the start, so that the task exists
    socket thread       end()        ── at the worker's end: cancels all tasks; the main thread waits for them
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

from rlinf_async._client.loop_thread import LoopThread
from rlinf_async._core.own_logger import own_logger
from rlinf_async._waits.thread_gate import reads
from rlinf_async._worker import broken_loop
from rlinf_async._worker.running_call import Call

logger = own_logger(__name__)


class ConcurrentCalls:
    """The running calls of ``@concurrent`` methods; thread-safe.

    Args:
        start: starts a call on the loop's thread; returns the task, or None if the call was already started or has
            ended.
    """

    def __init__(self, start: Callable[[Call, asyncio.AbstractEventLoop], asyncio.Task[None] | None]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: dict[asyncio.Task[None], Call] = {}  # accessed by the loop's thread only
        # Created by ``end`` and done once all tasks have ended; None until ``end`` is called.
        self.ended: Future[None] | None = None

    def submit(self, call: Call) -> None:
        """Run a call; ignore it after ``end``, because the daemon answers open calls when a worker exits.

        Raises:
            OSError, RuntimeError: the loop cannot get a descriptor or a thread; the next call retries.
        """
        with self._lock:
            if self.ended is not None:
                return
            if self._loop is None:
                self._loop = LoopThread("rlinf-concurrent", asyncio.new_event_loop(), _on_error).loop
                self._loop.call_soon_threadsafe(reads, False)  # this thread runs user code
            self._loop.call_soon_threadsafe(self._begin, call, self._loop)

    def cancel(self, call: Call) -> None:
        assert self._loop is not None  # the call has started, so the loop exists
        self._loop.call_soon_threadsafe(self._cancel, call)

    def end(self) -> None:
        """Cancel all calls and accept no more. Called only once, because a worker gets only one STOP."""
        with self._lock:
            if self._loop is not None:
                self.ended = asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop)
            else:
                # There is no loop yet, and ``submit`` must not create one now, because nothing would wait for its
                # calls' cleanup.
                self.ended = Future()
                self.ended.set_result(None)

    # -- on its own thread -----------------------------------------------------------------------------------------

    def _begin(self, call: Call, loop: asyncio.AbstractEventLoop) -> None:
        task = self._start(call, loop)
        if task is not None:
            self._calls[task] = call
            task.add_done_callback(self._calls.pop)

    @staticmethod
    def _cancel(call: Call) -> None:
        assert call.task is not None  # this callback runs after the one that started the call
        call.task.cancel()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            call = self._calls.get(task)
            if call is not None and call.cancelled:
                # A second cancellation must not interrupt the cleanup started by the first one.
                continue
            if call is not None:
                call.cancelled = True
            task.cancel()
        await all_ended(tasks)


async def all_ended(waited: Collection[asyncio.Future[Any]], seconds: float | None = None) -> None:
    """Wait until cancelled tasks have ended, even if one of them cancels every task of the loop, including this one."""
    loop = asyncio.get_running_loop()
    until = None if seconds is None else loop.time() + seconds
    while left := [each for each in waited if not each.done()]:
        rest = None if until is None else max(0.0, until - loop.time())
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(left, timeout=rest)
        if rest == 0.0:
            return


def _on_error(error: BaseException) -> None:
    if isinstance(error, SystemExit | KeyboardInterrupt):
        logger.warning("%s in a background task of the worker is ignored", type(error).__name__)
    else:
        broken_loop.end(error)  # the calls of a broken loop would never be answered
