"""Log lines of a program: words about long waits, and errors that reach no caller."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType

WARNING_S = 0.5
"""Seconds after which something is said about a wait."""


class Words(logging.Handler):
    """Collects what is said about waits (``about``), and what asyncio complains of (``complaints``)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(logging.WARNING)
        self._loop = loop
        self._said: list[str] = []
        self._wanted: list[tuple[str, asyncio.Future[None]]] = []
        self.complaints: list[str] = []

    def __enter__(self) -> Words:
        for logger in _loggers():
            logger.addHandler(self)
            logger.propagate = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for logger in _loggers():
            logger.removeHandler(self)
            logger.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.name == "asyncio":
            if record.levelno >= logging.ERROR:
                self.complaints.append(text)
        elif "still waiting" in text:
            self._loop.call_soon_threadsafe(self._hear, text)

    def _hear(self, text: str) -> None:
        self._said.append(text)
        for wanted, future in self._wanted:
            if wanted in text and not future.done():
                future.set_result(None)

    async def about(self, what: str) -> None:
        """Returns once it was said that this is waited for."""
        if not any(what in text for text in self._said):
            future: asyncio.Future[None] = self._loop.create_future()
            self._wanted.append((what, future))
            await future


def _loggers() -> list[logging.Logger]:
    return [logging.getLogger(name) for name in ("asyncio", "rlinf_async")]
