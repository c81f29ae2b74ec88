"""Child processes at the other ends of pipes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

PRELOADED = ("tests.weights.pipe_child", "tests.weights.scheme_child")

_server: socket.socket | None = None
"""Where the fork server hears orders."""


@contextlib.contextmanager
def fork_server() -> Iterator[None]:
    """The process that all children are forked from."""
    global _server
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests._support.fork_server", str(theirs.fileno()), *PRELOADED]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # it must not have threads when it forks
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment):
        theirs.close()
        with ours:
            _server = ours
            yield
        _server = None


class Child:
    """One of them.

    Attributes:
        pid: of its process.
        pipe: this process's end.
    """

    def __init__(self, pid: int, pipe: Any, standard: Any, status: asyncio.StreamReader) -> None:
        self.pid = pid
        self.pipe = pipe
        self._stdout, self._stdin = standard
        self._status = status

    async def word(self) -> str:
        """The next line that it writes."""
        async with asyncio.timeout(60):
            return (await self._stdout.readline()).decode().strip()

    async def story(self) -> Any:
        return json.loads(await self.word())

    def tell(self, line: str) -> None:
        self._stdin.write(f"{line}\n".encode())

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def stopped(self) -> None:
        """Has stopped itself: that takes longer than saying so, and a SIGCONT that comes before is lost."""
        async with asyncio.timeout(60):
            assert await self._status.readline() == b"stopped\n"

    async def ended(self) -> int:
        async with asyncio.timeout(30):
            while (word := await self._status.readline()) == b"stopped\n":
                pass
            return int(word)


@contextlib.asynccontextmanager
async def child(role: str, module: str = "pipe_child", **facts: Any) -> AsyncIterator[Child]:
    """Runs a role of ``pipe_child``, or of another module; it is killed if it has not ended with the block."""
    assert _server is not None, "a test that has children uses the fixture fork_server"
    order = {
        "module": f"tests.weights.{module}",
        "arguments": [role, json.dumps(facts)],
        "environment": dict(os.environ),
    }
    ours, theirs = multiprocessing.Pipe()
    pairs = socket.socketpair(), socket.socketpair()
    with theirs, pairs[0][1] as its_standard, pairs[1][1] as its_status:
        files = [its_standard.fileno(), its_status.fileno(), theirs.fileno()]
        socket.send_fds(_server, [json.dumps(order).encode()], files)
    standard, (status, status_writer) = [await asyncio.open_connection(sock=near) for near, _ in pairs]
    pid = int(await status.readline())
    try:
        yield Child(pid, ours, standard, status)
    finally:
        ours.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        await status.read()
        for writer in (standard[1], status_writer):
            writer.close()
