"""Job queues that run one job at a time, in order: in their own thread, or after a lock is released."""

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
    """Queue of jobs that one thread at a time runs. A job that raises does not stop the jobs behind it."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._jobs: deque[Job] = deque()
        self._is_busy = False

    def _begin(self) -> bool:
        """True if there are jobs and no thread runs them; the caller, which holds the lock, then calls ``_do_all``."""
        is_first = bool(self._jobs) and not self._is_busy
        self._is_busy |= is_first
        return is_first

    def _on_error(self, error: BaseException) -> None: ...

    def _do_all(self, linger_s: float = 0.0) -> BaseException | None:
        """Run all jobs, including those added meanwhile. Return the first error, such as a signal handler's."""
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
    """Runner of jobs in its own thread, which exists only while there are jobs.

    The idle thread waits ``linger_s`` seconds for another job: waking it is faster than a new start.
    """

    def __init__(self, name: str, linger_s: float = 0.0) -> None:
        super().__init__()
        self._name = name
        self._linger_s = linger_s

    def submit(self, job: Job) -> None:
        """Queue a job from any thread; its error is logged. RuntimeError if no thread can start; a next job retries."""
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
            # Another thread may have added a job meanwhile and left it to this thread's start. Nothing else would do it
            # before the next ``submit``, so it is done here.
            # tests/_transports/test_lazy_thread.py::test_a_job_that_was_added_while_no_thread_could_start_is_done
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
    """Lock with a queue of actions, which the first thread that releases it runs.

    No foreign code runs under the lock, and messages are sent in the order of the decisions::

        with deferred.locked():
            self.state = ...
            deferred.add(lambda: post(facts))
    """

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock; on exit, also after an error, run the queued actions, unless another thread is doing so."""
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
        # The traceback of its own exception would keep the future alive.
        del future
