"""A run that stands still, for operators to look at: ``python tests/_support/standing_runs.py``.

Its driver blocks its loop until a line comes; then it awaits, tells which rank has died, and awaits on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker
from rlinf_async._wire.local_socket import connect, peer_of
from rlinf_async.errors import WorkerDied
from rlinf_launcher.control.run_places import LocalRun

CHECKOUT = Path(__file__).resolve().parents[2]


class Standing(Worker):
    def speak(self) -> None:
        print(f"\x1b[31mrank\x1b[0m \x1b[2J{self._rank}", flush=True)
        print("trouble", file=sys.stderr, flush=True)

    async def stand(self) -> None:
        await asyncio.Event().wait()


async def stand() -> None:
    async with Cluster() as cluster:
        placement = NodePlacementStrategy([0, cluster.num_nodes - 1])
        group = Standing.create_group().launch(cluster, placement, name="rollout")
        await group.speak()
        channel = Channel.create("obs", maxsize=4)
        await channel.put(b"item")
        standing = group.stand()
        await asyncio.sleep(0.1)  # the daemon hears of calls that are open after 2 ms
        print("standing", flush=True)
        sys.stdin.readline()
        try:
            await standing
        except WorkerDied as died:
            print("died:", died, flush=True)
        await asyncio.Event().wait()


@contextmanager
def standing_run(*words: str) -> Iterator[subprocess.Popen[str]]:
    """The launcher of such a run, once it stands."""
    command = [sys.executable, "-m", "rlinf_launcher", *words, __file__]
    environ = {**os.environ, "PYTHONPATH": str(CHECKOUT), "RLINF_INSPECTION_TIMEOUT_S": "0.3"}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environ, text=True, **streams) as launcher:
        try:
            await_line(launcher, "standing")
            yield launcher
        finally:
            launcher.terminate()
            launcher.communicate()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def daemon_of(run: LocalRun, node: int) -> int:
    """Its pid."""
    with connect(str(run.sockets[node])) as sock:
        return peer_of(sock)[0]


def await_line(launcher: subprocess.Popen[str], beginning: str) -> str:
    """The first line of the script's output that begins so."""
    assert launcher.stdout is not None
    for line in launcher.stdout:
        if line.startswith(beginning):
            return line
    raise AssertionError(f"the run has ended before it said {beginning!r}")


if __name__ == "__main__":
    asyncio.run(stand())
