"""Starts and stops of whole runs, some of them ended by the death of any of their processes: nothing is left of any.

    python -m tests.faults.cycles                     # 200 runs of two nodes on this machine, 60 of them killed
    python -m tests.faults.cycles --cycles 20 --kills 10 --seed 3

One line of JSON: how many ended in which way, the median and the longest time from the end, or the kill, until nothing
was left, and what was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests._support.broken_runs import FIVE_SECONDS, SCRIPT, Broken, words_of

_WORDS: Final = ("-m", "rlinf_launcher", "--local-nodes", "2", SCRIPT)
_PHASES: Final = ("starting", "launching", "calls", "idle", "closing")
_PATIENCE_S: Final = 60.0


class Cycles:
    """Runs, one after the other.

    Attributes:
        ended: how many in which way.
        seconds: from the end of each, or the kill, until nothing was left.
        left: what was.
    """

    def __init__(self, seed: int) -> None:
        self.ended: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.left: list[str] = []
        self._random = random.Random(seed)

    def stop(self, folder: Path) -> None:
        """One that ends in order."""
        with Broken(folder, *_WORDS, "idle") as run:
            run.reach("idle")
            run.say("go on, and end")
            code = run.process.wait(_PATIENCE_S)
            self.ended["in order" if code == 0 else f"with exit code {code}"] += 1
            self._look(run, time.monotonic())

    def kill(self, folder: Path) -> None:
        """One of whose processes one is killed."""
        phase = self._random.choice(_PHASES)
        with Broken(folder, *_WORDS, phase) as run:
            run.reach(phase)
            pid = self._random.choice(sorted([run.process.pid, *run.processes()]))
            words, since = words_of(pid), time.monotonic()
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                words = ["nothing: it had ended"]
            self.ended[f"{phase}: {' '.join(words)[-40:]}"] += 1
            if run.process.poll() is None and phase == "idle":
                run.say("go on, and see what is dead")
            elif phase != "closing" and not self._ends(run):
                run.process.send_signal(signal.SIGINT)  # whoever it was, nobody was waiting for it
                since = time.monotonic()
            run.process.wait(_PATIENCE_S)
            self._look(run, max(since, time.monotonic() - FIVE_SECONDS))

    @staticmethod
    def _ends(run: Broken) -> bool:
        deadline = time.monotonic() + FIVE_SECONDS
        while run.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return run.process.poll() is not None

    def _look(self, run: Broken, since: float) -> None:
        self.left += run.orphans(time.monotonic() + FIVE_SECONDS)
        self.seconds.append(time.monotonic() - since)
        if run.run:
            self.left += run.directories()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cycles", description=__doc__)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args(arguments)
    memory = set(os.listdir("/dev/shm"))
    cycles = Cycles(flags.seed)
    killed = set(random.Random(flags.seed).sample(range(flags.cycles), flags.kills))
    with tempfile.TemporaryDirectory() as place:
        for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
            os.environ[name] = place
        for number in range(flags.cycles):
            folder = Path(place, str(number))
            folder.mkdir()
            (cycles.kill if number in killed else cycles.stop)(folder)
    left = cycles.left + sorted(set(os.listdir("/dev/shm")) - memory)
    told = {"ended": dict(cycles.ended), "median_s": round(statistics.median(cycles.seconds), 2)}
    print(json.dumps(told | {"longest_s": round(max(cycles.seconds), 2), "left": left}), flush=True)
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
