"""``ProbeProcess``: a hardware probe's subprocess, with memfds for input and output, awaited through its pidfd."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence

from .fork_server import MARKER, NO_TOKEN


class ProbeProcess:
    """A running probe, killed when closed; its input and output are memfds, so no pipe has to be serviced.

    ``subprocess`` starts it, not ``asyncio``, because the event loop would fork, and this process's gRPC connections do
    not survive a fork.
    """

    def __init__(self, program: Sequence[str], question: str, environment: Mapping[str, str]) -> None:
        with contextlib.ExitStack() as undo:
            files: list[int] = []
            self._files = files
            for name in ("question", "answer", "complaints"):
                files.append(os.memfd_create(name))
                undo.callback(os.close, files[-1])
            os.write(files[0], question.encode())
            os.lseek(files[0], 0, os.SEEK_SET)
            self._process = subprocess.Popen(
                program,
                stdin=files[0],
                stdout=files[1],
                stderr=files[2],
                start_new_session=True,
                env={**environment, MARKER: NO_TOKEN},
            )
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self._pidfd = os.pidfd_open(self._process.pid)
            undo.pop_all()

    async def answer(self) -> tuple[str, str, int]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            loop.remove_reader(self._pidfd)
            if not ended.done():
                ended.set_result(None)

        loop.add_reader(self._pidfd, end)
        try:
            await ended
        finally:
            loop.remove_reader(self._pidfd)
        code = self._process.wait()
        return self._read(1), self._read(2), code

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        # Do not wait: a process that a hung driver holds outlives its SIGKILL.
        self._process.kill()
        for fd in self._files:
            os.close(fd)
        if self._process.poll() is None:
            asyncio.get_running_loop().add_reader(self._pidfd, self._reap)
        else:
            os.close(self._pidfd)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._process.wait()
        os.close(self._pidfd)

    def _read(self, number: int) -> str:
        fd = self._files[number]
        return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")
