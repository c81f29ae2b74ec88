"""Jobs that are done one at a time, in the order in which they were given: aside, or once a lock is released."""

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


class _InOrder:
    """Jobs, and whether somebody is at them.  One that raises stops none of those behind it, for which others wait."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._jobs: deque[Job] = deque()
        self._is_busy = False

    def _begin(self) -> bool:
        """True if there are jobs and nobody is at them; under the lock. Then ``_do_all`` has to be called."""
        is_first = bool(self._jobs) and not self._is_busy
        self._is_busy |= is_first
        return is_first

    def _note(self, error: BaseException) -> None:
        """A job has raised."""

    def _do_all(self, linger_s: float = 0.0) -> BaseException | None:
        """Do what there is, and what is added meanwhile.  Return the first error, of a signal's handler for example."""
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
                self._note(error)
            del job  # with what it holds, before the next one comes


class LazyThread(_InOrder):
    """Does jobs in a thread of its own, which exists only while there are any.

    Args:
        name: of the thread.
        linger_s: seconds that the thread waits for another job before it ends; to wake it is faster than to start it.
    """

    def __init__(self, name: str, linger_s: float = 0.0) -> None:
        super().__init__()
        self._name = name
        self._linger_s = linger_s

    def submit(self, job: Job) -> None:
        """Do a job, whose error is logged; from any thread.

        Raises:
            RuntimeError: there is no thread for it; the next job tries again.
        """
        with self._condition:
            self._jobs.append(job)
            if not self._begin():
                self._condition.notify()
                return
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:
            with self._condition:
                self._is_busy = False
                self._jobs.remove(job)
            raise

    def _run(self) -> None:
        self._do_all(self._linger_s)

    def _note(self, error: BaseException) -> None:
        logger.error("a job of thread %r has failed", self._name, exc_info=error)

    def call(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Has a function called that may raise, or never return: a process that ends does not wait for it."""
        future: Future[Any] = Future()
        self.submit(functools.partial(_settle, future, function, args))
        return future


class DeferredActions(_InOrder):
    """A lock, and what was decided under it: done once it is released, by whichever thread comes first.

    So nothing foreign is called under the lock, and what is told to others is told in the order of the decisions::

        with deferred.locked():
            self.state = ...
            deferred.add(lambda: post(facts))
    """

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock; what was added is done at the end, or by a thread that is at it, also after an error."""
        try:
            with self._condition:
                yield
        finally:
            with self._condition:
                is_first = self._begin()
            if is_first and (failure := self._do_all()) is not None:
                raise failure

    def add(self, job: Job) -> None:
        """While locked only.  ``job`` does not raise."""
        self._jobs.append(job)


def _settle(future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function(*args))
    except BaseException as error:
        future.set_exception(error)
    finally:
        del future  # which would be held by its own exception's traceback
