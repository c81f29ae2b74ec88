"""Log file of a worker template: opens it for the template's output, and quotes its tail in errors."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from rlinf_async._core.printable import printable

_TAIL_BYTES: Final = 16 * 1024
_MAX_LINES: Final = 20
_MAX_LINE_CHARS: Final = 400
"""The end of a log that is told: bytes that are read, lines, and characters of each."""


def open_log(path: Path | None) -> int | None:
    """A descriptor to append to; None where the template writes where this process does."""
    if path is not None:
        with contextlib.suppress(OSError):  # a full disk, for example
            return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return None


def log_tail(log: Path | None) -> str:
    """The end of what a template has written, and where that stands: lines to append to an error."""
    if log is None:
        return ""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = [printable(line)[:_MAX_LINE_CHARS] for line in file.read().decode("utf-8", "replace").splitlines()]
    except OSError as error:
        return f"; what it said is not known: {error}"
    told = [line for line in lines if line.strip()][-_MAX_LINES:]
    return "".join(f"\n{line}" for line in (*(f"    | {line}" for line in told), f"  full log    {log}"))
