"""A thread for what may never come back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rlinf_async._transports.lazy_thread import LazyThread


class Beside:
    """Does one thing after the other, in a thread that is there while there is something to do.

    Unlike an executor's, it holds up no process that ends: what it waits for may be somebody who has stopped.

    Args:
        label: the thread's name.
    """

    def __init__(self, label: str) -> None:
        self._lane = LazyThread(label)

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Has it called; from any thread."""
        future: Future[Any] = Future()
        self._lane.submit(functools.partial(_run, future, function, args))
        return future

    def drain(self) -> None:
        """Waits for the end of all that it was told to do."""
        self.submit(_nothing).result()


def _run(future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function(*args))
    except BaseException as error:
        future.set_exception(error)
    finally:
        del future  # which would be held by its own exception's traceback


def _nothing() -> None:
    pass
