"""``LazyThread``: runs submitted jobs in order, in a thread that exists only while there are any."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

Job = Callable[[], None]


class LazyThread:
    """Runs jobs one after the other, in the order in which they were given, in a thread of its own.

    Args:
        name: of the thread.
        linger_s: seconds that the thread waits for another job before it ends; to wake it is faster than to start it.
    """

    def __init__(self, name: str, linger_s: float = 0.0) -> None:
        self._name = name
        self._linger_s = linger_s
        self._condition = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._is_running = False

    def submit(self, job: Job) -> None:
        """``job`` does not raise.  May be called from any thread."""
        with self._condition:
            self._jobs.append(job)
            if self._is_running:
                self._condition.notify()
                return
            self._is_running = True
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def call(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Has a function called that may raise, or never return: a process that ends does not wait for it."""
        future: Future[Any] = Future()
        self.submit(functools.partial(_settle, future, function, args))
        return future

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._jobs and self._linger_s:
                    self._condition.wait(self._linger_s)
                if not self._jobs:
                    self._is_running = False
                    return
                job = self._jobs.popleft()
            job()
            del job  # with what it holds, before the next one comes


def _settle(future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function(*args))
    except BaseException as error:
        future.set_exception(error)
    finally:
        del future  # which would be held by its own exception's traceback
