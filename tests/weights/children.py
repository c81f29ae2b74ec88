"""Other processes, at the other ends of pipes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any


class Child:
    """One of them.

    Attributes:
        pipe: this process's end.
    """

    def __init__(self, process: asyncio.subprocess.Process, pipe: Any) -> None:
        self._process = process
        self.pipe = pipe

    @property
    def pid(self) -> int:
        return self._process.pid

    async def word(self) -> str:
        """The next line that it writes."""
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            return (await self._process.stdout.readline()).decode().strip()

    async def story(self) -> Any:
        return json.loads(await self.word())

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def stopped(self) -> None:
        """Has stopped itself: that takes longer than saying so, and a SIGCONT that comes before is lost."""
        async with asyncio.timeout(60):
            which = os.WSTOPPED | os.WEXITED | os.WNOWAIT
            await asyncio.to_thread(os.waitid, os.P_PID, self.pid, which)

    async def ended(self) -> int:
        async with asyncio.timeout(30):
            return await self._process.wait()


@contextlib.asynccontextmanager
async def child(role: str, module: str = "pipe_child", **facts: Any) -> AsyncIterator[Child]:
    """Runs a role of ``pipe_child``, or ``scheme_child``; it is killed if it has not ended with the block."""
    ours, theirs = multiprocessing.Pipe()
    arguments = ("-m", f"tests.weights.{module}", str(theirs.fileno()), role, json.dumps(facts))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        pass_fds=[theirs.fileno()],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    theirs.close()
    try:
        yield Child(process, ours)
    finally:
        ours.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        transport = process._transport  # type: ignore[attr-defined]
        transport.close()
