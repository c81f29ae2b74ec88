"""Time that the search takes to find something: ``python -m tests.faults.find SECONDS TIMES [KIND...]``.

With kinds of violations (``hang``, ``lost``, ...) others do not count.
"""

from __future__ import annotations

import sys
import time

from tests.faults.search import Search
from tests.faults.stage import Report, Stage, surroundings


def main() -> None:
    seconds, times, kinds = float(sys.argv[1]), int(sys.argv[2]), set(sys.argv[3:])

    def wanted(report: Report) -> bool:
        return any(not kinds or violation.kind in kinds for violation in report.violations)

    for _ in range(times):
        seed = time.time_ns() % 1_000_000
        with surroundings(), Stage() as stage:
            began = time.monotonic()
            search = Search(stage, began + seconds, wanted, shrink_s=0.0)
            found = search.go(seed)
            spent = time.monotonic() - began if found is None else search.seconds
            print(f"==== {spent:.1f} s, {search.played} programs, seed {seed}:\n{found or 'nothing'}", flush=True)


if __name__ == "__main__":
    main()
