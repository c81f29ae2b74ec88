"""Looks up a worker object's public methods by name, and tells ``def``, coroutine and async generator apart."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

CONSTRUCT: Final = "__init__"


class Kind(Enum):
    DEF = auto()
    COROUTINE = auto()
    STREAM = auto()


class Methods:
    """The methods of one worker, looked up once each.

    Args:
        construct: what the constructor's call runs.

    Attributes:
        worker: None until it is constructed; till then nothing but its constructor can be called.
    """

    def __init__(self, construct: Callable[..., None]) -> None:
        self._construct = construct
        self.worker: Any = None
        self._known: dict[str, tuple[Kind, Callable[..., Any]]] = {}

    def find(self, method: str) -> tuple[Kind, Callable[..., Any]]:
        """How a method is run; one that does not exist is a function that says so when it is called."""
        known = self._known.get(method)
        if known is not None:
            return known
        if method == CONSTRUCT:
            return Kind.DEF, self._construct
        if self.worker is None:
            return Kind.DEF, _no_object
        function: Any = getattr(self.worker, method, None)
        if method.startswith("_") or not callable(function):
            return Kind.DEF, _Missing(self.worker, method)
        if inspect.isasyncgenfunction(function):
            kind = Kind.STREAM
        elif inspect.iscoroutinefunction(function):
            kind = Kind.COROUTINE
        else:
            kind = Kind.DEF
        self._known[method] = (kind, function)
        return kind, function


def _no_object(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("the worker has not been constructed")


class _Missing:
    """What a call of a method that does not exist runs into."""

    def __init__(self, worker: Any, method: str) -> None:
        self._worker, self._method = worker, method

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        names = [name for name in dir(self._worker) if not name.startswith("_")]
        public = [name for name in names if callable(getattr(self._worker, name))]
        raise AttributeError(
            f"{type(self._worker).__name__} has no public method {self._method!r}; it has {', '.join(public)}"
        )
