"""Draws mutants by seed, runs those that the journal lacks, and writes docs/mutants.md: ``make mutate``."""

from __future__ import annotations

import argparse
import queue
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.mutation.journal import Journal
from tests.mutation.mutants import Mutant, draw
from tests.mutation.reach import Reach
from tests.mutation.trials import CHECKOUT, SEEDS, Copy, copied, judge

REACH: Final = "build/reach.pickle"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="mutants to draw over all modules")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="modules whose path contains this")
    parser.add_argument(
        "--limit", type=float, default=120.0, help="seconds for the tests of a mutant; a third of it as recorded"
    )
    parser.add_argument("--jobs", type=int, default=1, help="copies of the checkout that run side by side")
    parser.add_argument("--simulated-seeds", type=int, default=SEEDS, help="seeds of tests.simulation; 0 for none")
    parser.add_argument("--survivors", action="store_true", help="run the open survivors of the draw again")
    parser.add_argument("--equivalent", nargs=2, metavar=("KEY", "REASON"), help="record why a survivor is no hole")
    parser.add_argument("--record", nargs="*", metavar="TEST", help="record anew which lines the tests run")
    parser.add_argument("--report", action="store_true", help="write the page only")
    parser.add_argument("--journal", type=Path, default=CHECKOUT / "docs/mutants.jsonl")
    return parser.parse_args(arguments)


def run(flags: argparse.Namespace, journal: Journal, checkout: Path = CHECKOUT) -> None:
    if flags.record is not None or not (checkout / REACH).exists():
        with copied(checkout, 0) as copy:
            copy.record(flags.jobs, *flags.record or ()).save(checkout / REACH)
    reach = Reach.load(checkout / REACH)
    drawn, of = draw(checkout, flags.count, flags.seed, flags.only)
    survivors = journal.survivors()
    todo = [each for each in drawn if (each.key in survivors if flags.survivors else not journal.has(each))]
    print(f"{len(drawn)} of {of} mutants are drawn, {len(todo)} of them run now", flush=True)
    if drawn and not flags.survivors:  # with --count 0, only the record is made anew
        journal.add({"count": flags.count, "seed": flags.seed, "of": of, "only": flags.only})
    stop = threading.Event()
    with ExitStack() as stack:
        made = [stack.enter_context(copied(checkout, flags.simulated_seeds)) for _ in range(min(flags.jobs, len(todo)))]
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for each in made:
            copies.put(each)

        def play(mutant: Mutant) -> None:
            if stop.is_set():
                return
            copy = copies.get()
            try:
                source = (copy.folder / mutant.module).read_bytes()
                outcome = judge(copy, reach, mutant, flags.limit, flags.simulated_seeds)
                if stop.is_set():
                    return
                journal.add_outcome(mutant, source, outcome)
                told = f"killed by {outcome.by}" if outcome.killed else "SURVIVED"
                print(f"{mutant.key} {mutant.module}:{mutant.line} {told}, {outcome.seconds:g} s", flush=True)
                if not outcome.killed:
                    print("  - {}\n  + {}".format(*mutant.shown(source)), flush=True)
            except BaseException:
                stop.set()
                raise
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(flags.jobs) as pool:
            try:
                list(pool.map(play, todo))
            except BaseException:
                stop.set()
                for each in made:
                    each.end()
                raise


def main(arguments: Sequence[str] | None = None) -> None:
    flags = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # copies and processes end with either signal
    journal = Journal(flags.journal)
    if flags.equivalent:
        key, reason = flags.equivalent
        if key not in journal.outcomes():
            raise SystemExit(f"no mutant {key} has run")
        journal.add({"equivalent": key, "because": reason})
    try:
        if not flags.equivalent and not flags.report:
            run(flags, journal)
    except KeyboardInterrupt:
        raise SystemExit("interrupted: the next run goes on behind the last mutant") from None
    finally:
        flags.journal.with_suffix(".md").write_text(journal.report())


if __name__ == "__main__":
    main()
