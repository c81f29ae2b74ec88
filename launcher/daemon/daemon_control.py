"""``DaemonControl``: a daemon's connection to its launcher, for events, commands, SIGTERM and the final timeout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, Protocol

from rlinf_async._core.own_logger import own_logger

logger = own_logger(__name__)

_STDIN: Final = 0
_STDOUT: Final = 1


class DaemonControl(Protocol):
    """Interface to the process that started a node, and to the node's own process."""

    def send(self, event: dict[str, Any]) -> None:
        """Send an event to the launcher, or drop it if the launcher has exited."""

    def commands(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the launcher's commands until the lifeline is cut."""

    def on_sigterm(self, callback: Callable[[], None]) -> None:
        """Call back on SIGTERM."""

    def end_within(self, seconds: int) -> None:
        """End the process after ``seconds``, even if its shutdown hangs."""


class StdioControl:
    """Control over stdin (commands, after ``rest``) and stdout (events after ``marker``), one JSON object per line."""

    def __init__(self, loop: asyncio.AbstractEventLoop, marker: str, rest: bytes) -> None:
        self._loop = loop
        self._marker = marker
        self._rest = rest

    def send(self, event: dict[str, Any]) -> None:
        line = (self._marker + json.dumps(event) + "\n").encode()
        with contextlib.suppress(OSError):
            while line:
                # stdout is often the same socket as stdin, and then non-blocking: it takes only a part of a long line.
                select.select([], [_STDOUT], [])
                line = line[os.write(_STDOUT, line) :]

    async def commands(self) -> AsyncGenerator[dict[str, Any], None]:
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
