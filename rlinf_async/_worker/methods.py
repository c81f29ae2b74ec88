"""Looks up a worker's public methods and their kinds by name; defines the ``concurrent`` decorator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from types import FunctionType
from typing import Any, Final, TypeVar

from rlinf_async._transports import process_groups

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])

CONSTRUCT: Final = "__init__"
ON_RESTART: Final = "on_restart"
# Name of the call made by supervision after rank 0 and the process groups' store have moved to another node.
MOVE_STORE: Final = "__store__"
_MARK: Final = "_rlinf_concurrent"


def concurrent(method: F) -> F:
    """Let an ``async def`` method run while a ``def`` method occupies the main thread, for example to report progress.

    Its calls do not queue behind other calls. Once the worker's constructor has returned, each call begins immediately,
    on an event loop in a second thread, even if the main thread is busy; several calls run concurrently. So the method
    runs **in parallel with** the worker's other code, and should only read and set plain attributes or use the tools of
    ``threading``. It must not compute for long, use torch's collectives, or touch other methods' asyncio objects.
    Returning, raising, ``cancel()``, deadlines, ``send``, ``recv`` and channels work as in other methods; the calls do
    not count towards ``max_concurrency``.

    Example:
        class Trainer(Worker):
            stopping = False

            def train(self):
                while not self.stopping:
                    self.step()

            @concurrent
            async def stop(self):
                self.stopping = True

    Raises:
        TypeError: the method is not an ``async def`` method, or is an async generator.
    """
    if not inspect.iscoroutinefunction(method):
        name = getattr(method, "__qualname__", repr(method))
        if inspect.isasyncgenfunction(method):
            why = "is an async generator, which streams: return a list, or put the items into a Channel"
        elif isinstance(method, staticmethod | classmethod):
            why = f"is a {type(method).__name__} already: write @concurrent below @{type(method).__name__}"
        else:
            why = "is none, and would need the main thread: make it `async def`, reading and setting attributes only"
        raise TypeError(f"@concurrent is for `async def` methods, and {name} {why}")
    setattr(method, _MARK, True)
    return method


def concurrent_names(worker_cls: type) -> frozenset[str]:
    """Return the names of a class's concurrent methods; an override in a subclass needs its own decorator."""
    methods = {name: value for owner in reversed(worker_cls.__mro__) for name, value in vars(owner).items()}
    return frozenset(name for name, value in methods.items() if _is_marked(value))


def _is_marked(value: Any) -> bool:
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    return isinstance(function, FunctionType) and _MARK in vars(function) and inspect.iscoroutinefunction(function)


class MethodKind(Enum):
    DEF = auto()
    COROUTINE = auto()
    STREAM = auto()
    # A coroutine method whose calls do not queue; they run on a separate thread's loop.
    CONCURRENT = auto()


class Methods:
    """The methods of one worker; each is looked up only once.

    Args:
        construct: function that runs the constructor call.

    Attributes:
        worker: the user's object; None until constructed, when only the constructor can be called.
        concurrent: names of the methods of kind ``CONCURRENT``; empty until the worker is constructed.
    """

    def __init__(self, construct: Callable[..., None]) -> None:
        self._construct = construct
        self.worker: Any = None
        self.concurrent: frozenset[str] = frozenset()
        self._known: dict[str, tuple[MethodKind, Callable[..., Any]]] = {}

    def drop(self) -> Any:
        """Remove and return the worker object."""
        worker, self.worker = self.worker, None
        self._known.clear()
        return worker

    def find(self, method: str) -> tuple[MethodKind, Callable[..., Any]]:
        """Return a method's kind and function; the function of a missing method raises the error."""
        known = self._known.get(method)
        if known is not None:
            return known
        if method == CONSTRUCT:
            return MethodKind.DEF, self._construct
        if self.worker is None:
            return MethodKind.DEF, _no_object
        if method == MOVE_STORE:
            return MethodKind.DEF, self.worker._meet_at
        try:
            function: Any = getattr(self.worker, method, None)
            if method.startswith("_") or not callable(function):
                return MethodKind.DEF, _Missing(self.worker, method)
            if method in self.concurrent:
                kind = MethodKind.CONCURRENT
            elif inspect.isasyncgenfunction(function):
                kind = MethodKind.STREAM
            elif inspect.iscoroutinefunction(function):
                kind = MethodKind.COROUTINE
            else:
                kind = MethodKind.DEF
        except BaseException as error:  # user code, such as __getattr__, raised it: only this call fails
            return MethodKind.DEF, functools.partial(_fail, error)
        if method == ON_RESTART:
            function = functools.partial(_run_hook, function)
        self._known[method] = (kind, function)
        return kind, function


def _run_hook(hook: Callable[..., Any], *args: Any) -> Any:
    process_groups.forget_half_made()
    return hook(*args)


def _fail(error: BaseException, *args: Any, **kwargs: Any) -> None:
    raise error


def _no_object(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("the worker has not been constructed")


class _Missing:
    def __init__(self, worker: Any, method: str) -> None:
        self._worker, self._method = worker, method

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        kind = type(self._worker)  # reading attributes of the instance would run its properties
        names = [name for name in dir(kind) if not name.startswith("_")]
        public = [name for name in names if callable(getattr(kind, name))]
        raise AttributeError(f"{kind.__name__} has no public method {self._method!r}; it has {', '.join(public)}")
