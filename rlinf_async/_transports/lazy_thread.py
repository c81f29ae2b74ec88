"""Queues that run one job at a time, in order, on their own thread or after a lock has been released."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from rlinf_async._core.own_logger import own_logger

logger = own_logger(__name__)

Job = Callable[[], object]


class _JobQueue:
    """A queue of jobs, which one thread at a time runs. A job that raises does not stop later jobs."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._jobs: deque[Job] = deque()
        self._is_busy = False

    def _begin(self) -> bool:
        """True if there are jobs that no thread is running; the caller, who holds the lock, must call ``_do_all``."""
        is_first = bool(self._jobs) and not self._is_busy
        self._is_busy |= is_first
        return is_first

    def _on_error(self, error: BaseException) -> None: ...

    def _do_all(self, linger_s: float = 0.0) -> BaseException | None:
        """Run all jobs, including jobs added in the meantime. Return the first error, such as a signal handler's."""
        failure: BaseException | None = None
        while True:
            with self._condition:
                if not self._jobs and linger_s:
                    self._condition.wait(linger_s)
                if not self._jobs:
                    self._is_busy = False
                    return failure
                job = self._jobs.popleft()
            try:
                job()
            except BaseException as error:
                failure = failure or error
                self._on_error(error)
            del job  # the job's references must not outlive it


class LazyThread(_JobQueue):
    """A runner of jobs on its own thread, which exists only while there are jobs.

    An idle thread waits ``linger_s`` seconds for another job, because waking it is faster than starting a new thread.
    """

    def __init__(self, name: str, linger_s: float = 0.0) -> None:
        super().__init__()
        self._name = name
        self._linger_s = linger_s

    def submit(self, job: Job) -> None:
        """Queue a job, from any thread; its errors are logged. Raise RuntimeError if no thread can start for now."""
        with self._condition:
            self._jobs.append(job)
            if not self._begin():
                self._condition.notify()
                return
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:
            with self._condition:
                self._jobs.remove(job)
            # Another thread may have added a job and relied on this thread's start. Nothing else would run the job
            # before the next ``submit``, so run it here. tests/_transports/test_lazy_thread.py::
            # test_a_job_that_was_added_while_no_thread_could_start_is_done
            self._do_all()
            raise

    def _run(self) -> None:
        self._do_all(self._linger_s)

    def _on_error(self, error: BaseException) -> None:
        logger.error("a job of thread %r has failed", self._name, exc_info=error)

    def call(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call a function that may raise or never return; an exiting process does not wait for it."""
        future: Future[Any] = Future()
        self.submit(functools.partial(_settle, future, function, args))
        return future


class DeferredActions(_JobQueue):
    """A lock with a queue of actions, which the first thread to release the lock runs.

    No foreign code runs under the lock, and messages are sent in the order in which they were decided::

        with deferred.locked():
            self.state = ...
            deferred.add(lambda: post(facts))
    """

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock; on exit, even after an error, run the queued actions unless another thread is running them."""
        try:
            with self._condition:
                yield
        finally:
            with self._condition:
                is_first = self._begin()
            if is_first and (failure := self._do_all()) is not None:
                raise failure

    def add(self, job: Job) -> None:
        """Queue an action, which must not raise, while the lock is held."""
        self._jobs.append(job)


def _settle(future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function(*args))
    except BaseException as error:
        future.set_exception(error)
    finally:
        # Drop this reference; otherwise, the traceback of the future's own exception would keep the future alive.
        del future
