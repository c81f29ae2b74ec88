"""Step g: SIGKILL of each process of a run with memory on the GPU; nothing stays there.

``python -m tests.gpu.deaths script`` is that run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

from rlinf_async import Cluster, FlexiblePlacementStrategy
from rlinf_async.hardware.nvidia import read_use
from tests.gpu.run import CHECKOUT
from tests.gpu.step import Step, main
from tests.gpu.workers import Pinned

HELD = 2 << 30
"""Bytes of the GPU that each worker has."""

FIVE_SECONDS = 5.0


def script() -> None:
    with Cluster(num_nodes=1) as cluster:
        group = Pinned.create_group().launch(cluster, FlexiblePlacementStrategy([[0], [0]]), name="held")
        print("workers", *group.hold(HELD).wait(), flush=True)
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
        run = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.deaths", "script"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT,
        )  # fmt: skip
        assert run.stdout is not None
        workers = next(line.split()[1:] for line in run.stdout if line.startswith("workers"))
        assert used() - before > HELD, "the driver does not count the workers' memory"
        tree = psutil.Process(run.pid).children(recursive=True)
        worker = psutil.Process(int(workers[0]))
        target = {"script": run.pid, "worker": worker.pid, "daemon": worker.ppid()}[victim]
        print(f"kills {psutil.Process(target).cmdline()} ({target})", file=sys.stderr)
        os.kill(target, signal.SIGKILL)
        began = time.monotonic()
        gone = None
        if victim == "worker":
            time.sleep(0.5)
            run.communicate("\n", timeout=20)
        while time.monotonic() - began < FIVE_SECONDS:
            if used() - before < HELD // 4:
                gone = time.monotonic() - began
                break
            time.sleep(0.05)
        run.kill()
        run.wait()
        left = [each.pid for each in tree if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert gone is not None, f"{(used() - before) >> 20} MiB of the GPU are held after {FIVE_SECONDS:g} s"
        return f"free after {gone:.2f} s" + (f"; {len(left)} processes of it ran then" if left else "")

    check.__name__ = f"check_after_death_of_the_{victim}_no_memory_is_held"
    return check


CHECKS = [after_death_of(victim) for victim in ("worker", "script", "daemon")]

if __name__ == "__main__":
    if sys.argv[1:] == ["script"]:
        script()
    else:
        main("g", CHECKS)
