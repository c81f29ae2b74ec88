"""Plays seeds, and prints what they have broken: ``python -m tests.simulation [FIRST LAST]``."""

from __future__ import annotations

import argparse
import logging
import time

from rlinf_async._core.own_logger import NAMES
from tests.simulation.play import play
from tests.simulation.shrink import shrink


def main() -> None:
    for name in NAMES:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="*", default=[0, 1000], help="the first, and the one behind the last")
    parser.add_argument("--first", action="store_true", help="stop at the first that breaks a promise")
    parser.add_argument("--shrink", action="store_true", help="look for a shorter program that breaks the same promise")
    parser.add_argument("--log", type=int, default=0, help="so many last lines of the log of those that do")
    flags = parser.parse_args()
    first, last = flags.seeds if len(flags.seeds) == 2 else (flags.seeds[0], flags.seeds[0] + 1)
    began, turns, failed = time.monotonic(), 0, 0
    for seed in range(first, last):
        report = play(seed)
        turns += report.turns
        if report.violations:
            failed += 1
            if flags.shrink:
                report = shrink(report)
            print(report, flush=True)
            print("\n".join(report.log[-flags.log :]) if flags.log else "", end="", flush=True)
            if flags.first:
                break
    seconds = time.monotonic() - began
    print(f"{last - first} seeds, {failed} failed, {seconds:.1f} s, {turns} turns")


if __name__ == "__main__":
    main()
