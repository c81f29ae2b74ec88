"""``TextOutput``: prints ``rlinf-ctl``'s lines, tables or JSON; workers' output cannot move the cursor."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Final, TextIO

from rlinf_async._core.printable import plain, printable

_COLUMN_GAP: Final = 2


class TextOutput:
    """A command's output; with ``as_json``, one JSON object per line and nothing else."""

    def __init__(self, stream: TextIO, *, as_json: bool) -> None:
        self.as_json = as_json
        self._stream = stream
        self._is_terminal = stream.isatty()
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # a file's name may be no text in the stream's encoding

    def json(self, data: Any) -> None:
        self._write(json.dumps(data))

    def line(self, text: str = "") -> None:
        """Print the command's own lines, without colours, because they may contain names from the run."""
        self._write("\n".join(plain(line) for line in text.split("\n")))

    def note(self, text: str) -> None:
        sys.stderr.write("\n".join(plain(line) for line in text.split("\n")) + "\n")

    def worker_line(self, prefix: str, text: str) -> None:
        """Print a worker's line, keeping its colours on a terminal."""
        self._write(plain(prefix) + (printable(text) if self._is_terminal else plain(text)))

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print aligned columns; on a narrow terminal the widest columns wrap, and no text is truncated."""
        cells = [[[plain(line) for line in cell.split("\n")] for cell in row] for row in rows]
        widths = [max((_width(line) for row in cells for line in row[at]), default=0) for at in range(len(titles))]
        widths = [max(width, _width(title)) for width, title in zip(widths, titles, strict=True)]
        if self._is_terminal and sum(widths) + _COLUMN_GAP * len(widths) > shutil.get_terminal_size().columns:
            self._write(self._wrapped(titles, cells))
            return
        lines = [_aligned(titles, widths)]
        if self._is_terminal:
            lines[0] = f"\x1b[1m{lines[0]}\x1b[0m"
        for row in cells:
            lines += [_aligned(line, widths) for line in zip_longest(*row, fillvalue="")]
        self._write("\n".join(lines))

    def _wrapped(self, titles: Sequence[str], cells: Sequence[Sequence[Sequence[str]]]) -> str:
        # Use rich only if lines wrap, because for hundreds of rows its import and layout take longer than everything
        # else.
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console(file=self._stream, highlight=False, width=shutil.get_terminal_size().columns)
        shown = Table(box=None, padding=(0, _COLUMN_GAP, 0, 0), header_style="bold")
        for title in titles:
            shown.add_column(title, overflow="fold")
        for row in cells:
            shown.add_row(*(Text("\n".join(cell)) for cell in row))
        with console.capture() as drawn:
            console.print(shown)
        return "\n".join(line.rstrip() for line in drawn.get().splitlines())

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def _width(text: str) -> int:
    """Return the number of terminal columns that a text occupies."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (width - _width(cell) + _COLUMN_GAP) for cell, width in zip(cells, widths, strict=True))
    return "".join(padded).rstrip()


def age(seconds: float) -> str:
    """Format a duration: ``0.4 s``, ``42 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def size(count: int) -> str:
    """Format a number of bytes: ``0``, ``512 B``, ``1.5 MB``, ``80.0 GB``."""
    if count < 1000:
        return f"{count} B" if count else "0"
    for unit in ("kB", "MB", "GB"):
        count_in_unit = count / {"kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
        if count_in_unit < 999.95 or unit == "GB":
            return f"{count_in_unit:.1f} {unit}"
    return ""
