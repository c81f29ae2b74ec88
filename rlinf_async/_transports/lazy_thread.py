"""``LazyThread``: runs submitted jobs in order, in a thread that exists only while there are any."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rlinf_async._core.own_logger import own_logger

logger = own_logger(__name__)

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
        """Run a job, whose error is logged; from any thread.

        Raises:
            RuntimeError: there is no thread for it; the next job tries again.
        """
        with self._condition:
            self._jobs.append(job)
            self._condition.notify()
            if not self._is_running:
                self._is_running = True  # first: a finalizer that the start has run may submit something here
                try:
                    threading.Thread(target=self._run, name=self._name, daemon=True).start()
                except RuntimeError:
                    self._is_running = False
                    self._jobs.remove(job)
                    raise

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
            try:
                job()
            except Exception:
                logger.exception("a job of thread %r has failed", self._name)
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
