"""Step g: SIGKILL of each process of a run with memory on the GPU; nothing stays there.

``python -m tests.gpu.deaths script BYTES`` is that run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

from rlinf_async import FlexiblePlacementStrategy
from rlinf_async.hardware.nvidia import read_use
from tests.gpu.run import CHECKOUT
from tests.gpu.step import Step, main
from tests.gpu.workers import Pinned, one_node

HELD = 2 << 30
"""Bytes of the GPU that each worker of the run has."""

FIVE_SECONDS = 5.0


def script(nbytes: int) -> None:
    with one_node() as cluster:
        group = Pinned.create_group().launch(cluster, FlexiblePlacementStrategy([[0], [0]]), name="held")
        print("workers", *group.hold(nbytes).wait(), flush=True)
        sys.stdin.readline()


def used() -> int:
    return sum(use["used"] for use in read_use(["0"]).values())


def settled() -> int:
    """Return the memory of the GPU that is in use once that has not fallen for a second."""
    least, since = used(), time.monotonic()
    while time.monotonic() - since < 1:
        time.sleep(0.05)
        if (now := used()) < least:
            least, since = now, time.monotonic()
    return least


def after_death_of(victim: str) -> Callable[[Step], str]:
    def check(step: Step) -> str:
        before = settled()
        with subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.deaths", "script", str(HELD)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT,
        ) as run:  # fmt: skip
            try:
                return killed(run, victim, before)
            finally:
                run.kill()

    check.__name__ = f"check_after_death_of_the_{victim}_no_memory_is_held"
    return check


def killed(run: subprocess.Popen[str], victim: str, before: int) -> str:
    """Kill a process of a run that holds memory, and return how long it took until the memory was free."""
    assert run.stdout is not None
    workers = next(line.split()[1:] for line in run.stdout if line.startswith("workers"))
    assert used() - before > HELD, "the driver does not count the workers' memory"
    tree = psutil.Process(run.pid).children(recursive=True)
    worker = psutil.Process(int(workers[0]))
    target = {"script": run.pid, "worker": worker.pid, "daemon": worker.ppid()}[victim]
    print(f"kills {psutil.Process(target).cmdline()} ({target})", file=sys.stderr)
    os.kill(target, signal.SIGKILL)
    most = HELD + HELD // 2 if victim == "worker" else HELD // 4  # the other worker lives
    began, held = time.monotonic(), used() - before
    while held >= most and time.monotonic() - began < FIVE_SECONDS:
        time.sleep(0.05)
        held = used() - before
    took = time.monotonic() - began
    if victim == "worker":
        run.communicate("\n", timeout=20)
    left = [each for each in tree if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    if held >= most:
        for process in left:
            process.kill()
        raise AssertionError(f"{held >> 20} MiB of the GPU are held after {FIVE_SECONDS:g} s by {len(left)} processes")
    return f"free after {took:.2f} s"


CHECKS = [after_death_of(victim) for victim in ("worker", "script", "daemon")]

if __name__ == "__main__":
    if sys.argv[1:2] == ["script"]:
        script(int(sys.argv[2]))
    else:
        main("g", CHECKS)
