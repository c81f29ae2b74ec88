"""A thread for what would hold up an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from rlinf_async.errors import ClosedError

_AT_ONCE: Final = 1 << 20
"""Bytes that are copied sooner than a thread is asked to."""

T = TypeVar("T")


class ProcessEnds(ClosedError):
    """This process is ending, and starts nothing any more."""


class Aside:
    """Does one thing after the other, in a thread that is there once there is something to do.

    Attributes:
        label: the thread's name.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._is_closed = False

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
        with self._locked():  # whoever closes it closes it behind this
            try:
                future = asyncio.get_running_loop().run_in_executor(self._thread(), function, *args)
            except RuntimeError as error:
                raise ProcessEnds(f"{self.label}: this process ends") from error
        return await outlast(future)

    async def wait(self) -> None:
        """Waits for the end of what is being done and what is to be done."""
        with self._locked():
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
        with self._locked():
            if not self._is_closed:
                self._thread().submit(function, *args)

    async def end(self) -> None:
        """As ``close``, and holds up no loop."""
        try:
            await self.wait()
        finally:
            self.close()

    def _locked(self) -> threading.Lock:
        if self._pid != os.getpid():  # forked: the thread is the parent's, and so is whoever had the lock
            self._pid, self._lock, self._executor = os.getpid(), threading.Lock(), None
        return self._lock

    def _thread(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix=self.label)
        return self._executor

    def close(self) -> None:
        """Waits for the end of what is being done."""
        with self._locked():
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
