"""``idempotent``: marks methods whose calls are repeated if a worker dies in the middle of them and is restarted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar

M = TypeVar("M", bound=Callable[..., Any])

_MARK: Final = "_rlinf_idempotent"


def idempotent(method: M) -> M:
    """Allow calls of a worker's method to be repeated if the worker dies during the call.

    In a group launched with ``restart=``, a call that a dead rank has not answered is repeated on the restarted rank,
    as often as needed; a call through ``group.any()`` is repeated on another rank, once. The caller does not notice the
    death. The method must therefore be harmless if it runs twice, or partly and then completely. This holds
    for methods that only read, compute, or overwrite the same data.

    An async generator method may be marked if it has a keyword-only parameter ``resume``. If another rank restarts its
    stream, which happens only with ``group.any()``, ``resume`` is the list of items received so far, and the method
    yields the items that follow them.

    Example:
        class Rollout(Worker):
            @idempotent
            def evaluate(self, prompts):
                return [self.model(prompt) for prompt in prompts]

            @idempotent
            async def generate(self, prompt, *, resume=()):
                async for token in self.model.stream(prompt, prefix=resume):
                    yield token

    Raises:
        TypeError: the method is a generator without ``resume``, whose first items may already have been used.
    """
    function: Any = method.__func__ if isinstance(method, staticmethod | classmethod) else method
    streams = inspect.isasyncgenfunction(function)
    if inspect.isgeneratorfunction(function) or (streams and not _takes_items(function)):
        name = getattr(function, "__qualname__", repr(function))
        fix = "return a list" + (", or take the items that have come as `*, resume=()`" if streams else "")
        raise TypeError(
            f"@idempotent is for methods that return, and {name} is a generator, of whose items some may have been "
            f"used already: {fix}"
        )
    if not inspect.isfunction(function):
        raise TypeError(f"@idempotent is for methods of workers, got {function!r}")
    setattr(function, _MARK, True)
    return method


def _takes_items(function: Any) -> bool:
    resume = inspect.signature(function).parameters.get("resume")
    return resume is not None and resume.kind is inspect.Parameter.KEYWORD_ONLY


def is_idempotent(method: Any) -> bool:
    """True if a method of a worker class is marked as idempotent."""
    return bool(getattr(method, _MARK, False))
