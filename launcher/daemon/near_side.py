"""``NearSide``, a daemon's side of its lifeline: events on stdout, orders on stdin; its signals, and its timeout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, Protocol

from rlinf_async._core.own_logger import own_logger

logger = own_logger(__name__)

_STDIN: Final = 0
_STDOUT: Final = 1


class NearSide(Protocol):
    """What a node has to do with the process that started it, and with its own process."""

    def say(self, event: dict[str, Any]) -> None:
        """Tell the near side; lost where that is gone."""

    def orders(self) -> AsyncGenerator[dict[str, Any], None]:
        """What the near side says, until the lifeline is cut."""

    def on_sigterm(self, callback: Callable[[], None]) -> None:
        """Have this called where the process shall end."""

    def end_within(self, seconds: int) -> None:
        """Have the process end after so many seconds, in order or not."""


class StandardStreams:
    """The near side at the other end of stdin and stdout.

    Args:
        marker: what a line begins with that is for the near side.
        rest: what has been read of stdin already.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, marker: str, rest: bytes) -> None:
        self._loop = loop
        self._marker = marker
        self._rest = rest

    def say(self, event: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            os.write(_STDOUT, (self._marker + json.dumps(event) + "\n").encode())

    async def orders(self) -> AsyncGenerator[dict[str, Any], None]:
        lines = self._rest
        readable = asyncio.Event()
        os.set_blocking(_STDIN, False)
        self._loop.add_reader(_STDIN, readable.set)
        try:
            while True:
                while b"\n" in lines:
                    line, _, lines = lines.partition(b"\n")
                    yield json.loads(line)
                readable.clear()
                await readable.wait()
                try:
                    data = os.read(_STDIN, 65536)
                except BlockingIOError:
                    continue
                if not data:
                    logger.info("the lifeline is cut: ending")
                    return
                lines += data
        except OSError as error:
            logger.info("the lifeline is cut (%s): ending", error)
        finally:
            self._loop.remove_reader(_STDIN)

    def on_sigterm(self, callback: Callable[[], None]) -> None:
        self._loop.add_signal_handler(signal.SIGTERM, callback)

    def end_within(self, seconds: int) -> None:
        signal.alarm(seconds)
