"""Looks up a worker object's public methods by name and kind; ``concurrent``, which marks those beside the others."""

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
MOVE_STORE: Final = "__store__"
"""The supervision's call: rank 0 is on another node, and the store of the process groups with it."""
_MARK: Final = "_rlinf_concurrent"


def concurrent(method: F) -> F:
    """Lets an ``async def`` method of a worker run while a ``def`` method has the main thread: health, progress, stop.

    Calls of it do not wait in the order of the others: each begins at once after the worker's constructor has returned,
    on an event loop in a second thread, whatever the main thread does; several run concurrently.  So this code runs
    **beside** the worker's other code, and should do no more than read and set plain attributes, or use what
    ``threading`` has.  It must not compute for long, use torch's collectives, or touch asyncio objects of the other
    methods.  Returning, raising, ``cancel()``, deadlines, ``send``, ``recv`` and channels work as elsewhere;
    ``max_concurrency`` does not count it.

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
        TypeError: it is no ``async def`` method, or an async generator.
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
    """The names of a class's methods that are ``concurrent``; what a subclass writes anew is so only if it says so."""
    methods = {name: value for owner in reversed(worker_cls.__mro__) for name, value in vars(owner).items()}
    return frozenset(name for name, value in methods.items() if _is_marked(value))


def _is_marked(value: Any) -> bool:
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    return isinstance(function, FunctionType) and _MARK in vars(function) and inspect.iscoroutinefunction(function)


class Kind(Enum):
    DEF = auto()
    COROUTINE = auto()
    STREAM = auto()
    CONCURRENT = auto()
    """A coroutine that does not wait for its turn, and has a loop in a thread of its own."""


class Methods:
    """The methods of one worker, looked up once each.

    Args:
        construct: what the constructor's call runs.

    Attributes:
        worker: None until it is constructed; till then nothing but its constructor can be called.
        concurrent: names of methods of the kind ``CONCURRENT``; none until the worker is constructed.
    """

    def __init__(self, construct: Callable[..., None]) -> None:
        self._construct = construct
        self.worker: Any = None
        self.concurrent: frozenset[str] = frozenset()
        self._known: dict[str, tuple[Kind, Callable[..., Any]]] = {}

    def drop(self) -> Any:
        """Let go of the worker, and return it."""
        worker, self.worker = self.worker, None
        self._known.clear()
        return worker

    def find(self, method: str) -> tuple[Kind, Callable[..., Any]]:
        """How a method is run; one that does not exist is a function that says so when it is called."""
        known = self._known.get(method)
        if known is not None:
            return known
        if method == CONSTRUCT:
            return Kind.DEF, self._construct
        if self.worker is None:
            return Kind.DEF, _no_object
        if method == MOVE_STORE:
            return Kind.DEF, self.worker._meet_at
        try:
            function: Any = getattr(self.worker, method, None)
        except BaseException as error:  # of a property, or of __getattr__: this call's, and no other's
            return Kind.DEF, functools.partial(_fail, error)
        if method.startswith("_") or not callable(function):
            return Kind.DEF, _Missing(self.worker, method)
        if method in self.concurrent:
            kind = Kind.CONCURRENT
        elif inspect.isasyncgenfunction(function):
            kind = Kind.STREAM
        elif inspect.iscoroutinefunction(function):
            kind = Kind.COROUTINE
        else:
            kind = Kind.DEF
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
    """What a call of a method that does not exist runs into."""

    def __init__(self, worker: Any, method: str) -> None:
        self._worker, self._method = worker, method

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        kind = type(self._worker)  # whose properties are not asked
        names = [name for name in dir(kind) if not name.startswith("_")]
        public = [name for name in names if callable(getattr(kind, name))]
        raise AttributeError(f"{kind.__name__} has no public method {self._method!r}; it has {', '.join(public)}")
