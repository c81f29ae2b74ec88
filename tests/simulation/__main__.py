"""``python -m tests.simulation [FIRST] [LAST]``: plays seeds, and prints what they have broken."""

from __future__ import annotations

import logging
import sys
import time

from tests.simulation.play import play


def main() -> None:
    logging.basicConfig(level=logging.CRITICAL)
    first, last = int(sys.argv[1]), int(sys.argv[2])
    began, turns, failed = time.monotonic(), 0, 0
    for seed in range(first, last):
        report = play(seed)
        turns += report.turns
        if report.violations:
            failed += 1
            print(report, flush=True)
    seconds = time.monotonic() - began
    print(f"{last - first} seeds, {failed} failed, {seconds:.1f} s, {turns} turns")


if __name__ == "__main__":
    main()
