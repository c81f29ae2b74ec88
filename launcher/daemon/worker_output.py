"""Capture of a worker's stdout or stderr from its pipe, for the log file, exit reports and line subscribers."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rlinf_async import settings
from rlinf_async._core.printable import printable

MAX_LINE_BYTES: Final = 8192
_MAX_REPORTED_LINE_CHARS: Final = 400
MAX_LAST_READS: Final = 32
"""Limit on reads that empty a worker's pipe. The first reads return the worker's own output (a pipe holds 64 KiB, or
1 MiB if enlarged), and a descendant that writes endlessly must not block the node."""


class WorkerOutput:
    """One output stream (stdout or stderr) of one worker, read from a pipe.

    Lines go to the log file unchanged, and to ``on_lines`` without their newline.

    Attributes:
        written_bytes: bytes that the worker has written.
        lost_bytes: bytes missing from the log because of ``log_error``.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, log: Path, on_lines: Callable[[list[str]], None] | None
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._log = log
        self._log_fd: int | None = None
        self.log_error = ""
        self._on_lines = on_lines
        self._rest = b""
        self._last: deque[str] = deque(maxlen=int(settings.EXIT_REPORT_LINES()))
        self._open = True
        self.written_bytes = 0
        self.lost_bytes = 0
        self._open_log()
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._readable)

    def last_lines(self) -> list[str]:
        """Return the last lines, including an unfinished line and output that waits in the pipe."""
        if self._open:
            self._drain()
        rest = _text(self._rest).strip()
        return [_cut(line, _MAX_REPORTED_LINE_CHARS) for line in (*self._last, rest) if line]

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Read once; return False if the pipe is empty or closed."""
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._fd)
            return False
        lacks_now = self._write_log(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        if lines:
            texts = [_text(line) for line in lines]
            self._last.extend(text for text in texts if text.strip())
            if self._on_lines is not None:
                self._on_lines(texts)
        if lacks_now and self._on_lines is not None:
            self._on_lines([f"… from here on lines are missing in {self._log}: {self.log_error}"])
        return True

    def _drain(self) -> None:
        for _ in range(MAX_LAST_READS):  # a descendant may keep writing
            if not self._read():
                break

    def _open_log(self) -> None:
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            self._log_fd = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            self.log_error = _reason(error)

    def _write_log(self, data: bytes) -> bool:
        """Append to the log; return True if output is lost for the first time. A full disk must not stop the run."""
        complete = not self.lost_bytes
        self.written_bytes += len(data)
        view = memoryview(data)
        try:
            while self._log_fd is not None and view:
                view = view[os.write(self._log_fd, view) :]  # a nearly full disk may accept only a part
        except OSError as error:
            self.log_error = _reason(error)
        self.lost_bytes += len(view)
        return complete and bool(view)

    def close(self) -> None:
        """Read the remaining output, and close the pipe and log."""
        if not self._open:
            return
        self._open = False
        self._drain()
        if self._rest.strip() and self._on_lines is not None:
            self._on_lines([_text(self._rest)])
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        if self._log_fd is not None:
            os.close(self._log_fd)
            self._log_fd = None


def log_lacks(outputs: Sequence[WorkerOutput]) -> str:
    """Describe how much of a worker's output is missing from its logs, and why; empty if nothing is missing."""
    error = next((output.log_error for output in outputs if output.lost_bytes), "")
    if not error:
        return ""
    whole = sum(output.written_bytes for output in outputs)
    kept = whole - sum(output.lost_bytes for output in outputs)
    amount = f"{kept / 1e6:.1f} of {whole / 1e6:.1f} MB" if whole >= 100_000 else f"{kept} of {whole} bytes"
    return f"{amount} are in the log: {error}"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower().removesuffix(" on device")


def _text(line: bytes) -> str:
    return _cut(printable(line.decode("utf-8", "replace")), MAX_LINE_BYTES)


def _cut(line: str, most: int) -> str:
    if len(line) <= most:
        return line
    return f"{line[:most]}… [{len(line) - most} more characters, see the log]"
