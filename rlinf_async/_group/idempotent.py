"""``idempotent``: marks methods whose calls are made once more where a worker dies during them and comes back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar

M = TypeVar("M", bound=Callable[..., Any])

_MARK: Final = "_rlinf_idempotent"


def idempotent(method: M) -> M:
    """Lets a call of a worker's method be made once more where the worker dies during it and is started again.

    For groups that are launched with ``restart=``: a call that a dead rank had not answered is made again on the next
    incarnation, as often as there is one, and its caller hears nothing of the death.  So the method must do no harm
    when it is run twice, or half and then whole: reading, computing, writing the same again.

    Example:
        class Rollout(Worker):
            @idempotent
            def evaluate(self, prompts):
                return [self.model(prompt) for prompt in prompts]

    Raises:
        TypeError: it is a generator, of whose items some may have been used already.
    """
    function: Any = method.__func__ if isinstance(method, staticmethod | classmethod) else method
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(
            f"@idempotent is for methods that return, and {name} is a generator, of whose items some may have been "
            "used already: return a list"
        )
    if not inspect.isfunction(function):
        raise TypeError(f"@idempotent is for methods of workers, got {function!r}")
    setattr(function, _MARK, True)
    return method


def is_idempotent(method: Any) -> bool:
    """Whether a method of a worker class is marked so."""
    return bool(getattr(method, _MARK, False))
