"""``LineMarks``, shared memory in which each process of a test marks the lines of the product that it runs.

A copy's environment imports this module at the start of each process, so it imports nothing of the project. A mark
remains if the process is killed.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

VARIABLE: Final = "RLINF_LINE_MARKS"
"""Environment variable that names the file of the running test session."""


class LineMarks:
    """One byte that numbers the test, then one for each line of the modules; all processes of a test share them."""

    def __init__(self, path: Path) -> None:
        self.offsets: dict[str, int] = json.loads(path.with_suffix(".json").read_text())
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._tracers: dict[int, tuple[CodeType, Any]] = {}
        """Maps the id of a code object to its tracer; None if the test has run all its lines."""
        self._test = -1

    @classmethod
    def create(cls, path: Path, lines: dict[str, int]) -> LineMarks:
        """Make the file for modules with these numbers of lines, and let later child processes find it."""
        offsets, end = {}, 1
        for module, count in lines.items():
            offsets[module] = end
            end += count + 1  # lines are numbered from 1
        path.write_bytes(bytes(end))
        path.with_suffix(".json").write_text(json.dumps(offsets))
        os.environ[VARIABLE] = str(path)
        return cls(path)

    def begin(self) -> None:
        """Begin a test: delete the marks of the one before, and trace this process and its threads."""
        self._memory[1:] = bytes(len(self._memory) - 1)
        self._memory[0] = (self._memory[0] + 1) % 256
        self.trace_process()

    def read(self) -> bytes:
        """Return the marks of the test."""
        return self._memory[:]

    def trace_process(self) -> None:
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if self._memory[0] != self._test:
            self._tracers, self._test = {}, self._memory[0]
        code = frame.f_code
        known = self._tracers.get(id(code))
        if known is None:
            offset = self.offsets.get(code.co_filename)
            known = self._tracers[id(code)] = code, None if offset is None else self._tracer(code, offset)
        return known[1]

    def _tracer(self, code: CodeType, offset: int) -> Any:
        memory, tracers = self._memory, self._tracers
        left = {line for _, _, line in code.co_lines() if line is not None}

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            if (line := frame.f_lineno) in left and event == "line":
                left.discard(line)
                memory[offset + line] = 1
                if not left:
                    tracers[id(code)] = code, None
            return trace

        return trace


if path := os.environ.get(VARIABLE):
    LineMarks(Path(path)).trace_process()
