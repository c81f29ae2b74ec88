"""What a worker writes: into its log file, its last lines remembered, and line by line to whoever wants them."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rlinf_async.core.printable import printable

LAST_WORDS: Final = 50
LONGEST_LINE: Final = 8192
LONGEST_WORD: Final = 400
"""Characters of a line that are told again with a death; the log has them all."""
LAST_READS: Final = 32
"""Of a pipe at its end: what the dead worker itself wrote is in the first of them (a pipe holds 64 KiB, or 1 MiB where
somebody made it larger), and a descendant that writes without end must not stop the node."""


class Output:
    """One stream (stdout or stderr) of one worker, read from a pipe.

    Lines go to the log file as they are, and to ``on_lines`` without their newline.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, log: Path, on_lines: Callable[[list[str]], None] | None
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._log_fd: int | None = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._on_lines = on_lines
        self._rest = b""
        self._last: deque[str] = deque(maxlen=LAST_WORDS)
        self._open = True
        self.lost_bytes = 0
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._readable)

    def last_words(self) -> list[str]:
        """The last lines, the unfinished one among them."""
        rest = _text(self._rest).strip()
        return [_cut(line, LONGEST_WORD) for line in (*self._last, rest) if line]

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """False when nothing more is there."""
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._fd)
            return False
        self._write_log(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        if lines:
            texts = [_text(line) for line in lines]
            self._last.extend(text for text in texts if text.strip())
            if self._on_lines is not None:
                self._on_lines(texts)
        return True

    def _write_log(self, data: bytes) -> None:
        if self._log_fd is None:
            return
        try:
            os.write(self._log_fd, data)
        except OSError:
            # A full disk must not stop the run; the count says that lines are missing.
            self.lost_bytes += len(data)

    def close(self) -> None:
        """Reads what is still there (not to the end: a grandchild may hold the pipe open, and write on) and closes."""
        if not self._open:
            return
        self._open = False
        for _ in range(LAST_READS):
            if not self._read():
                break
        if self._rest.strip() and self._on_lines is not None:
            self._on_lines([_text(self._rest)])
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        if self._log_fd is not None:
            os.close(self._log_fd)
            self._log_fd = None


def _text(line: bytes) -> str:
    return _cut(printable(line.decode("utf-8", "replace")), LONGEST_LINE)


def _cut(line: str, most: int) -> str:
    if len(line) <= most:
        return line
    return f"{line[:most]}… [{len(line) - most} more characters, see the log]"
