"""``Handlers``: dispatches control requests to a daemon's handlers by operation, and sends the ANSWER frames."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from typing import Any, Final, NamedTuple, TypeVar

from rlinf_async._core import frames
from rlinf_async._core.operations import Operation, WaitingOperation, read
from rlinf_async._core.own_logger import own_logger
from rlinf_async.errors import ClosedError, LaunchError, LeaseLost

from .router import Router

logger = own_logger(__name__)

LATER: Final = object()  # return value of a handler that will answer its request later


class Requester(NamedTuple):
    """An endpoint and the number of its request."""

    endpoint: int
    number: int


Op = TypeVar("Op", bound=Operation[Any])


class Handlers:
    """Registry that maps each operation to its handler; it refuses waiting requests of ``gone`` endpoints."""

    def __init__(self, router: Router, gone: Container[int]) -> None:
        self._router = router
        self._gone = gone
        self.table: dict[type[Operation[Any]], Callable[[Requester, Any], Awaitable[Any]]] = {}

    def register(self, kind: type[Op], handler: Callable[[Requester, Op], Awaitable[Any]]) -> None:
        self.table[kind] = handler

    async def handle(self, requester: Requester, name: str, fields: Any) -> None:
        """Run a request's handler and send its ANSWER; an exception is sent as an error of the same name."""
        ok, value = True, None
        try:
            operation = read(name, fields)
            if isinstance(operation, WaitingOperation) and requester.endpoint in self._gone:
                raise LaunchError(f"{name}: the process that requested this is gone")
            value = await self.table[type(operation)](requester, operation)
        except Exception as caught:
            error = _first(caught)
            ok, value = False, [type(error).__name__, str(error)]
            if not isinstance(error, (ValueError, LaunchError, KeyError, ClosedError, LeaseLost)):
                logger.exception("%s failed", name)
        if value is not LATER:
            self.answer(requester, value, ok=ok)

    def answer(self, requester: tuple[int, int], value: Any, *, ok: bool = True) -> None:
        me = frames.endpoint(self._router.node, 0)
        target, number = requester
        try:
            self._router.deliver((frames.ANSWER, 0, me, target, number, ok, value))
        except (ValueError, TypeError) as error:  # the value cannot be packed
            self._router.deliver((frames.ANSWER, 0, me, target, number, False, ["LaunchError", str(error)]))


def _first(error: Exception) -> Exception:
    """Return the first error in a task group's exception, which caused the others."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
