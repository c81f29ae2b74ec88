"""Times of ``rlinf-ctl``: ``status`` and ``stack --all`` of a large run with a blocked driver and a stopped rank.

    python -m benches.bench_cockpit [--quick]

Each command is a process, as for an operator; ``status_daemon`` is the CPU time of the daemon and its guardian for one
command.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .measure import ITSELF, OURS, Case, Target, alternate, print_row
from .options import parse

BENCH: Final = "cockpit"
RANKS: Final = 256
QUICK_RANKS: Final = 4
CONTROL: Final = Path(sys.executable).with_name("rlinf-ctl")
END_TIMEOUT_S: Final = 60.0


def cases(ranks: int) -> dict[str, Case]:
    note = f"{ranks} ranks in time.sleep(), one of them stopped; the driver's loop is blocked"
    return {
        "status": Case(BENCH, "status", "s", targets=[Target(0.5, ITSELF)], note=note),
        "status_daemon": Case(BENCH, "status_daemon", "s", targets=[Target(0.05, ITSELF)], note=note),
        "stack_all": Case(BENCH, "stack_all", "s", targets=[Target(3, ITSELF)], note=note),
    }


def main(arguments: list[str] | None = None) -> None:
    options = parse("What it takes to look at a run.", rounds=11, arguments=arguments)
    ranks = QUICK_RANKS if options.quick else RANKS
    wanted = {name: case for name, case in cases(ranks).items() if options.wants(name)}
    with standing_run(ranks) as run:
        for name, case in wanted.items():
            measure = {
                "status": lambda: [run.ask("status")[0]],
                "status_daemon": lambda: [run.ask("status")[1]],
                "stack_all": lambda: [run.ask("stack", "--all")[0]],
            }[name]
            rounds = alternate(options.rounds, {OURS: measure}, warm_up=not options.quick)
            print_row({**case.row(rounds), "loop": "asyncio"})


@dataclass(frozen=True)
class StandingRun:
    """A run that is stuck.

    Attributes:
        folder: parent of run directories, with only this run.
        daemons: process ids.
    """

    folder: Path
    daemons: Sequence[int]

    def ask(self, *words: str) -> tuple[float, float]:
        """Return the seconds of a command, and the daemons' CPU seconds for it."""
        before, began = _cpu_seconds(self.daemons), time.perf_counter()
        subprocess.run([CONTROL, "--run-dir", self.folder, *words], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began, _cpu_seconds(self.daemons) - before


@contextlib.contextmanager
def standing_run(ranks: int) -> Iterator[StandingRun]:
    """Start a stuck run for the block, and end all its processes after it."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder, "TMPDIR": folder}
        command = [sys.executable, "-m", "benches.contestants.standing", str(ranks)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as driver:
            try:
                assert driver.stdout is not None
                pids = list(map(int, driver.stdout.readline().split()))
                os.kill(pids[-1], signal.SIGSTOP)
                yield StandingRun(Path(folder), _daemons(driver.pid))
            finally:
                driver.kill()
                driver.wait()
                _await_end(pids)


def _daemons(driver: int) -> list[int]:
    """Return the driver's descendants that run no user code."""
    import psutil

    return [each.pid for each in psutil.Process(driver).children(recursive=True) if _is_daemon(each.cmdline())]


def _is_daemon(command: Sequence[str]) -> bool:
    return any(word.startswith("rlinf_launcher") for word in command)


def _cpu_seconds(pids: Sequence[int]) -> float:
    found = (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in found) / 1e9


def _await_end(pids: Sequence[int]) -> None:
    """Wait until the workers have ended, after the daemon has noticed the driver's death."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
