"""Plays programs from the command line: ``python -m tests.faults.play FILE [TIMES]``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.faults.stage import Stage, read_program, surroundings


def main() -> None:
    program = read_program(Path(sys.argv[1]).read_text())
    with surroundings(), Stage() as stage:
        for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
            before = time.monotonic()
            report = stage.play(program)
            print(f"{time.monotonic() - before:.2f} s", report if report.violations else "nothing is wrong")


if __name__ == "__main__":
    main()
