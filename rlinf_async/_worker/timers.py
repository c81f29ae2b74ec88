"""Wall-clock timers for a worker: ``Timers``, the context manager ``TimedSpan``, and the decorator ``timed``."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar, cast

from rlinf_async._recorder import recording
from rlinf_async._recorder.state.event_ring import EventKind

F = TypeVar("F", bound=Callable[..., Any])


class Timers:
    """A set of timers that add up the seconds for each tag until they are consumed; thread-safe.

    Example:
        with timers.span("train"): ...
        timers.pop_all()     # {"train": 0.0123}
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, tag: str, seconds: float) -> None:
        with self._lock:
            self.seconds[tag] = self.seconds.get(tag, 0.0) + seconds

    def pop(self, tag: str) -> float:
        """Remove and return a tag's recorded seconds.

        Raises:
            ValueError: no time was recorded under this tag.
        """
        with self._lock:
            if tag not in self.seconds:
                raise ValueError(f"no timer of tag {tag!r} has been recorded; recorded tags: {sorted(self.seconds)}")
            return self.seconds.pop(tag)

    def pop_all(self) -> dict[str, float]:
        with self._lock:
            seconds = dict(self.seconds)
            self.seconds.clear()
        return seconds

    def span(self, tag: str, category: str | None = None) -> TimedSpan:
        """Return a context manager that adds its duration to the tag, and records a trace span if given a category."""
        return TimedSpan(self, tag, category)


class TimedSpan:
    """A context manager that measures the time of one block."""

    def __init__(self, timers: Timers, tag: str, category: str | None) -> None:
        self._timers = timers
        self._tag = tag
        self._category = category
        self._since = 0.0
        self._event = 0

    def __enter__(self) -> TimedSpan:
        if self._category is not None and recording.admits():
            self._event = recording.begin(EventKind.SPAN, self._tag, 0.0, (self._category, None))
        self._since = time.perf_counter()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._timers.add(self._tag, time.perf_counter() - self._since)
        if self._event:
            recording.end(self._event, exc_info[0] is not None)
            self._event = 0


def caller_name() -> str:
    """Return the name of the function that called the caller of this one."""
    return sys._getframe(2).f_code.co_name


def timed(tag: str | None, trace: bool = True) -> Callable[[F], F]:
    """Return a decorator for methods of an object that has ``worker_timer``; the default tag is the method's name."""

    def decorate(method: F) -> F:
        name = tag or method.__name__
        if inspect.isasyncgenfunction(method):

            @functools.wraps(method)
            async def stream(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
                # aclosing closes the inner generator together with this one; otherwise only the garbage collector would
                # close it.
                with self.worker_timer(name, trace):
                    async with contextlib.aclosing(method(self, *args, **kwargs)) as items:
                        async for item in items:
                            yield item

            return cast(F, stream)
        if inspect.iscoroutinefunction(method):

            @functools.wraps(method)
            async def coroutine(self: Any, *args: Any, **kwargs: Any) -> Any:
                with self.worker_timer(name, trace):
                    return await method(self, *args, **kwargs)

            return cast(F, coroutine)

        @functools.wraps(method)
        def plain(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self.worker_timer(name, trace):
                return method(self, *args, **kwargs)

        return cast(F, plain)

    return decorate
