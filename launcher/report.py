"""Progress output of ``rlinf-launch`` on stderr as a live table, plain lines or JSON; text tables for other output.

A terminal gets one live table that collapses into one line; other outputs get one line per change, without colours, or
with ``--json`` one JSON object per change.  ``--quiet`` leaves only errors, but JSON still reports the exit code and a
failed run's bundle.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

_COLUMNS: Final = ("after", "daemon", "py", "torch", "gpus")


class Named(Protocol):
    """The facts about a node that the report shows."""

    @property
    def name(self) -> str: ...

    @property
    def hidden(self) -> bool: ...


class Report:
    """Report with one line per change.  Writing never raises: a closed terminal must not keep a run from ending."""

    def __init__(self, stream: TextIO | None = None, verbosity: int = 0) -> None:
        self._stream = stream or sys.stderr
        self.verbosity = verbosity
        self._names: Sequence[str] = ()
        self._rows: list[dict[str, str]] = []
        self._began = time.monotonic()

    def begin(self, run: str, nodes: Sequence[Named], logs: str = "") -> None:
        """Report the start of a run, or of a check, which has no id; ``nodes`` are in rank order."""
        self._names = [node.name for node in nodes]
        self._rows = [dict.fromkeys(_COLUMNS, "-") | {"state": "starting"} for _ in nodes]
        if run:
            count = counted(sum(not node.hidden for node in nodes), "node")
            also = ", and a daemon here for the script" if any(node.hidden for node in nodes) else ""
            self._header(run, f"{count}{also}, logs in {logs}", logs)

    def node(self, rank: int, state: str, text: str = "", **columns: str | float) -> None:
        """Report a node as ``reached``, ``up``, ``ready``, ``failed`` or ``lost``; float columns are in seconds."""
        shown = {key: f"{each:.1f}s" if isinstance(each, float) else str(each) for key, each in columns.items()}
        self._rows[rank].update(shown, state=f"{state}: {text}" if text else state)
        known = " ".join(f"{key} {value}" for key, value in shown.items())
        self._changed(rank, state, text, known)

    def ready(self, facts: Mapping[str, int]) -> None:
        """Report that all nodes are ready; ``facts`` are counts by noun (``{"node": 2}``)."""
        seconds = time.monotonic() - self._began
        counts = ", ".join(counted(value, name) for name, value in facts.items())
        self.note(f"ready in {seconds:.1f} s: {counts}")

    def note(self, text: str) -> None:
        if self.verbosity >= 0:
            self._write(text)

    def detail(self, text: str) -> None:
        if self.verbosity >= 1:
            self._write(text)

    def warn(self, text: str) -> None:
        if self.verbosity >= 0:
            self._write(f"warning: {text}")

    def error(self, text: str) -> None:
        self._write(f"error: {text}")

    def output(self, text: str) -> None:
        self._write(text)

    def bundle(self, path: Path) -> None:
        self.note(f"a bundle of the run: {path} (rlinf-ctl page {path} shows it)")

    def exit(self, script: str, code: int, script_code: int | None) -> None:
        """Report the end; ``script_code`` is 128 + n for signal n, and None if the launcher has ended the script."""
        if script_code is None:
            return
        if script_code > 128:
            self.note(f"{script} was ended by signal {script_code - 128} (exit code {script_code})")
        elif script_code:
            self.note(f"{script} ended with exit code {script_code}")

    def close(self) -> None:
        """Finish the output."""

    def _header(self, run: str, text: str, logs: str) -> None:
        self.note(f"rlinf run {run}: {text}")

    def _changed(self, rank: int, state: str, text: str, known: str) -> None:
        if state == "lost":
            self.error(f"{self._names[rank]}: lost: {text}")
        elif state != "failed":  # failures are listed together at the end
            self.note(" ".join(filter(None, (f"{self._names[rank]}: {state}", known, text))))

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text + "\n")
            self._stream.flush()


class JsonReport(Report):
    """Report with one JSON object per line: ``{"event": …}``."""

    def _header(self, run: str, text: str, logs: str) -> None:
        self._say_unless_quiet("run", run=run, nodes=self._names, log_dir=logs)

    def node(self, rank: int, state: str, text: str = "", **columns: str | float) -> None:
        say = self._say if state in ("failed", "lost") else self._say_unless_quiet
        say("node", rank=rank, name=self._names[rank], state=state, text=text, **columns)

    def ready(self, facts: Mapping[str, int]) -> None:
        counts = {f"{noun.lower()}s": count for noun, count in facts.items()}
        self._say_unless_quiet("ready", seconds=round(time.monotonic() - self._began, 3), **counts)

    def note(self, text: str) -> None:
        self._say_unless_quiet("note", text=text)

    def detail(self, text: str) -> None:
        if self.verbosity >= 1:
            self._say("detail", text=text)

    def warn(self, text: str) -> None:
        self._say_unless_quiet("warning", text=text)

    def error(self, text: str) -> None:
        self._say("error", text=text)

    def output(self, text: str) -> None:
        self._say("output", text=text)

    def bundle(self, path: Path) -> None:
        self._say("bundle", path=str(path))

    def exit(self, script: str, code: int, script_code: int | None) -> None:
        say = self._say if code else self._say_unless_quiet
        say("exit", script=script, code=code, script_code=script_code)

    def _say_unless_quiet(self, event: str, **facts: Any) -> None:
        if self.verbosity >= 0:
            self._say(event, **facts)

    def _say(self, event: str, **facts: Any) -> None:
        self._write(json.dumps({"event": event, **facts}))


class LiveReport(Report):
    """Report as a table that is redrawn at every change, without a thread, and finally replaced by one line."""

    def __init__(self, stream: TextIO | None = None, verbosity: int = 0) -> None:
        super().__init__(stream, verbosity)
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=self._stream, highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._drawn = False

    def begin(self, run: str, nodes: Sequence[Named], logs: str = "") -> None:
        super().begin(run, nodes, logs)
        if len(nodes) > 1:
            self._draw()

    def ready(self, facts: Mapping[str, int]) -> None:
        self._erase()
        super().ready(facts)

    def close(self) -> None:
        self._erase()

    def error(self, text: str) -> None:
        self._erase()
        super().error(text)

    def _changed(self, rank: int, state: str, text: str, known: str) -> None:
        if self._drawn:
            self._draw()
        elif state == "lost":
            super()._changed(rank, state, text, known)

    def _draw(self) -> None:
        from rich.table import Table

        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for title in ("node", *_COLUMNS, "state"):
            table.add_column(title.upper(), no_wrap=title != "state")
        for name, row in zip(self._names, self._rows, strict=True):
            colour = {"ready": "green", "failed": "red", "lost": "red"}.get(row["state"].partition(":")[0])
            table.add_row(name, *(row[key] for key in _COLUMNS), row["state"].splitlines()[0], style=colour)
        with suppress(OSError, ValueError):
            if not self._drawn:
                self._live.start()
                self._drawn = True
            self._live.update(table, refresh=True)

    def _erase(self) -> None:
        if self._drawn:
            self._drawn = False
            with suppress(OSError, ValueError):
                self._live.stop()

    def _write(self, text: str) -> None:
        if not self._drawn:
            super()._write(text)
            return
        with suppress(OSError, ValueError):
            self._console.print(text, soft_wrap=True)


def make_report(*, as_json: bool, verbosity: int, stream: TextIO | None = None) -> Report:
    stream = stream or sys.stderr
    if as_json:
        return JsonReport(stream, verbosity)
    is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    if is_terminal and verbosity == 0:
        return LiveReport(stream, verbosity)
    return Report(stream, verbosity)


def grid(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows with aligned columns, for ``--check`` and ``--dry-run``."""
    widths = [max(len(row[column]) for row in (titles, *rows)) for column in range(len(titles))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in (titles, *rows)]
    return "\n".join(line.rstrip() for line in lines)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``"1 node"``, ``"2 nodes"``."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
