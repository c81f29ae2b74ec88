"""Requests to daemons: open until answered."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import Sequence
from typing import Any, Final

from rlinf_async import errors
from rlinf_async._client import far_side
from rlinf_async.work import Work

HERE: Final = -1
"""``client.ask(..., node=HERE)``: this process's own node."""


class Request(Work[Any]):
    """A question to a daemon; ``number`` is what the daemon knows it by."""

    _ends_with_others = False
    _kind = "request"

    def __init__(
        self, client: far_side.Client, number: int, operation: str, arguments: Any, node: int, what: str = ""
    ) -> None:
        super().__init__()
        self.number = number
        self.operation = operation
        self.arguments = arguments
        self.node = node
        self._client = client
        self._what = what or operation

    def _describe(self) -> str:
        return self._what

    def _user_loop(self) -> asyncio.AbstractEventLoop | None:
        return self._client.user_loop

    def _whom(self) -> str:
        return f"the daemon of node {self.node}"

    def _far_side(self) -> Work[str]:
        return far_side.request(self._client, self.operation, self.arguments, self.number, self.node)


class Requests:
    """The open ones of a client, by number."""

    def __init__(self) -> None:
        self._open: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, ask: Request) -> Request:
        self._open[ask.number] = ask
        return ask

    def answer(self, number: int, ok: bool, value: Any) -> None:
        ask = self._open.pop(number, None)
        if ask is None:
            return
        if ok:
            ask._settle(value)
        else:
            ask._settle(error=error_of(value))

    def fail(self, error: Exception, *, node: int | None = None) -> None:
        """Ends all of them, or those to one node."""
        for number, ask in list(self._open.items()):
            if node is None or ask.node == node:
                del self._open[number]
                ask._settle(error=error)

    def refuse(self, ask: Request, error: Exception) -> None:
        """This one cannot even be sent."""
        self._open.pop(ask.number, None)
        ask._settle(error=error)

    def forget(self) -> None:
        """In a forked child: they are the parent's."""
        self._open.clear()


def error_of(value: Sequence[str]) -> Exception:
    """The error of an ANSWER: ``[class name, message]``."""
    name, message = value
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # a type that takes more than a message
            return kind(message)
    return RuntimeError(f"{name}: {message}")
