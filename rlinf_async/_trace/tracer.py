"""``Tracer``: records users' spans in a run's trace, through a context manager, a decorator or calls."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar, cast

from rlinf_async._client import registry
from rlinf_async._recorder import recording
from rlinf_async._recorder.state.span_log import SpanLog
from rlinf_async._trace import recorder
from rlinf_async.work import blocking

_MAX_TEXT_CHARS: Final = 200  # names and string arguments are cut at this length

_MAX_ARGUMENTS: Final = 16

F = TypeVar("F", bound=Callable[..., Any])


class Tracer:
    """A recorder of spans of user code, in addition to the recorded calls, messages, channels and timers.

    Works in drivers and workers, in coroutines and threads; does nothing in a run that is not traced. A run is traced
    if it was started with ``rlinf-launch --trace FILE``, with ``Cluster(trace="file.json")`` or with ``cluster.tracer:
    {enable: true, output_file: ...}`` in its configuration. https://ui.perfetto.dev opens the file, even during the
    run.

    Spans of one coroutine, or of one thread, are nested; overlapping spans of several coroutines or threads are on
    separate tracks. The trace keeps arguments that are numbers or strings, and only the type of any other argument.

    Example:
        with Tracer.trace_span("load", args={"shard": 3}):
            ...

        @Tracer.trace_func
        async def fetch(self): ...
    """

    @staticmethod
    def trace_begin(name: str, cat: str = "default", args: dict[str, Any] | None = None) -> None:
        """Begin a span; ``trace_end`` ends it in the same coroutine or, outside coroutines, in the same thread."""
        if (log := recording.log) is not None:
            log.enter(_text(name), _text(cat), plain(args))

    @staticmethod
    def trace_end(name: str, cat: str = "default") -> None:
        """End the latest span with this name and category begun here; do nothing if there is none."""
        if (log := recording.log) is not None:
            log.end_innermost(_text(name), _text(cat))

    @staticmethod
    def trace_span(name: str, cat: str = "default", args: dict[str, Any] | None = None) -> TraceSpan:
        """Return a context manager for a span."""
        return TraceSpan(name, cat, args)

    @staticmethod
    def trace_func(function: Any = None, *, name: str | None = None, cat: str = "default") -> Any:
        """Decorate a ``def``, ``async def`` or async generator function; usable with or without arguments.

        Args:
            name: name of the spans; by default the function's qualified name.
        """

        def decorate(function: F) -> F:
            return _traced(function, name or function.__qualname__, cat)

        return decorate if function is None else decorate(function)

    @staticmethod
    def finalize(*, cluster: registry.HasClient | None = None) -> Any:
        """Complete the file with the spans recorded so far by all the run's processes; recording continues.

        This call is optional: the end of the cluster completes the file.

        Args:
            cluster: cluster to trace, if several are open in this process.

        Returns:
            The path of the file on the driver's machine; None if the run is not traced. In a coroutine, a ``Work`` that
            resolves to the path.

        Raises:
            RuntimeError: no ``cluster=`` was given, and this process does not have exactly one open cluster.
        """
        client = registry.client_of(cluster)
        return blocking(client.run(recorder.collect(client), what="the trace of the run"))


class TraceSpan:
    """A span as a context manager."""

    __slots__ = ("_args", "_category", "_log", "_name", "_span")

    def __init__(self, name: str, category: str, args: dict[str, Any] | None) -> None:
        self._name = name
        self._category = category
        self._args = args
        self._log: SpanLog | None = None
        self._span = 0

    def __enter__(self) -> None:
        self._log = recording.log
        if self._log is not None:
            self._span = self._log.enter(_text(self._name), _text(self._category), plain(self._args))

    def __exit__(self, *exc_info: object) -> None:
        # Skip the end in a child forked within the span, because the log belongs to the parent, and a parent's thread
        # may hold its lock.
        if self._log is not None and self._log is recording.log:
            self._log.end(self._span)
        self._log = None


def _traced(function: F, name: str, category: str) -> F:
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def stream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            # aclosing closes the inner generator together with this one; otherwise only the garbage collector would
            # close it.
            with TraceSpan(name, category, None):
                async with contextlib.aclosing(function(*args, **kwargs)) as items:
                    async for item in items:
                        yield item

        return cast(F, stream)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with TraceSpan(name, category, None):
                return await function(*args, **kwargs)

        return cast(F, coroutine)

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with TraceSpan(name, category, None):
            return function(*args, **kwargs)

    return cast(F, plain)


def plain(args: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a span's arguments as plain data: numbers and strings, and the type of anything else.

    No ``repr`` is called, because a device tensor's ``repr`` would wait for the device.
    """
    if not args:
        return None
    return {str(name)[:_MAX_TEXT_CHARS]: _plain(value) for name, value in list(args.items())[:_MAX_ARGUMENTS]}


def _text(value: Any) -> str:
    """Return any value as a string of limited length."""
    return value if type(value) is str and len(value) <= _MAX_TEXT_CHARS else str(value)[:_MAX_TEXT_CHARS]


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) <= _MAX_ARGUMENTS:
        return [_scalar(each) for each in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 53 else f"{value:.6g}" if abs(value) < 1 << 1000 else "a large number"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, str):
        return str(value[:_MAX_TEXT_CHARS])
    return f"<{type(value).__name__}>"
