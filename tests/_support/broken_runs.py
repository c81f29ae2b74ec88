"""Runs that a test breaks: a script whose workers leave processes behind, started in one of three ways.

``python tests/_support/broken_runs.py PHASE`` is that script.  It goes as far as the phase and says so on its output;
``Broken`` starts it, waits for that, names the processes of the run and tells what is left of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

from rlinf_async import Cluster, NodePlacementStrategy
from tests._support import leaks
from tests._support.fake_hosts import CHECKOUT, FakeHosts, Host
from tests._support.workers import OVERWRITE_ENVIRONMENT, Plain

SCRIPT = str(Path(__file__).resolve())

MARK = "RLINF_TEST_RUN"
"""In the environment of everything that a test starts on this machine, from its first moment."""

FIVE_SECONDS = 5.0
"""What is left of a run after that is an orphan."""

PATIENCE = 60.0
"""Seconds for a run to come as far as its phase."""


UNSEEN = f"""
{OVERWRITE_ENVIRONMENT}
import time
from multiprocessing import shared_memory
memory = shared_memory.SharedMemory(create=True, size=4096)
print("unseen", flush=True)
time.sleep(600)
"""
"""Program with shared memory that overwrites its environment; its argument is the mark."""


class Litter(Plain):
    """A worker with shared memory, a file of CUDA's, a child, a grandchild in a session of its own, a forked child that
    changed its session, and two children that overwrote their environment, one in the worker's session.
    """

    def __init__(self, stay: bool) -> None:
        super().__init__()
        self.memory = shared_memory.SharedMemory(create=True, size=4096)
        Path(f"/dev/shm/cuda.shm.{os.getuid()}.{os.getpid():x}.1").touch()  # as CUDA does for shared events
        unseen = [
            subprocess.Popen(
                [sys.executable, "-c", UNSEEN, os.environ[MARK]], stdout=subprocess.PIPE, start_new_session=alone
            )
            for alone in (True, False)
        ]
        self.leave_behind()
        for child in unseen:
            assert child.stdout is not None
            assert child.stdout.readline() == b"unseen\n"
        print("littered by", os.getpid(), flush=True)
        if stay:
            time.sleep(600)

    async def linger(self) -> None:
        """Needs a moment to end once it is cancelled."""
        print("waiting", flush=True)
        try:
            await asyncio.sleep(600)
        finally:
            print("lingering", flush=True)
            await asyncio.sleep(1)

    def hold(self) -> None:
        print("holding", flush=True)
        time.sleep(600)


def script(phase: str) -> None:
    """Goes as far as the phase, and on at the test's word."""
    if "RLINF_RUN_ID" in os.environ:  # under the launcher the script's own children are of the run, too
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    memory = shared_memory.SharedMemory(create=True, size=4096)
    with Cluster() as cluster:
        print("shared", memory.name, flush=True)
        print("run", cluster.run_id, flush=True)
        placement = NodePlacementStrategy([0, 1] if cluster.num_nodes > 1 else [0, 0])
        group = Litter.create_group(phase == "launching").launch(cluster, placement=placement, name="litter")
        group.wait_ready()
        if phase == "deaf":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if phase == "calls":
            group.linger()
            group.hold().wait()
        elif phase == "closing":
            group.linger()
            group.hello().wait()
            group.close()
            return
        print("idle\n", end="", flush=True)  # in one piece: a worker's line may come between text and end
        sys.stdin.readline()
        group.hello().wait()
        print("answered", flush=True)


WHEN = {
    "starting": ("", 0),
    "launching": ("littered", 2),
    "calls": ("holding", 2),
    "idle": ("idle", 1),
    "closing": ("lingering", 2),
    "deaf": ("idle", 1),
}
"""Phase → what the output holds then, and how often."""


class Broken:
    """A run that is about to be broken; a context manager that leaves nothing of it.

    Attributes:
        process: what the test started: the script in the setting ``plain``, else the launcher.
        run: the run's id, once it is known.
    """

    process: subprocess.Popen[str]

    def __init__(
        self,
        folder: Path,
        *words: str,
        hosts: FakeHosts | None = None,
        prefix: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self.run = ""
        self._mark = uuid.uuid4().hex
        self._words = words
        self._prefix = prefix
        self._hosts = hosts
        self._options = options
        self._folder = folder

    def __enter__(self) -> Broken:
        environment = {"PYTHONPATH": str(CHECKOUT), MARK: self._mark, "PYTHONUNBUFFERED": "1"}
        argv = [*self._prefix, sys.executable, *self._words]
        if self._hosts is not None:
            argv = self._hosts.driver.command(argv, cwd=CHECKOUT, env=environment)
        with (self._folder / "out").open("w") as out:
            files = {"stdin": subprocess.PIPE, "stdout": out, "stderr": subprocess.STDOUT}
            files |= {"start_new_session": True} | self._options
            self.process = subprocess.Popen(argv, cwd=CHECKOUT, env=os.environ | environment, text=True, **files)
        return self

    def __exit__(self, *exc_info: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            leaks.wait_ended(pids, 5)

    @property
    def out(self) -> str:
        return (self._folder / "out").read_text()

    def say(self, word: str = "") -> None:
        """A line on the script's stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    # -- as far as the phase ------------------------------------------------------------------------------------

    def reach(self, phase: str) -> None:
        """Waits until the run is in that phase; when it starts, until its first daemon has a process."""
        text, times = WHEN[phase]
        if phase == "starting":
            self.until(lambda: bool(self.daemons()))
        else:
            self.until(lambda: self.out.count(text) >= times)
            self._find_run()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, f"it has ended with {self.process.returncode}:\n{self.out}"
            assert time.monotonic() < deadline, f"it did not come so far:\n{self.out}"
            time.sleep(0.01)

    def _find_run(self) -> None:
        for line in self.out.splitlines():
            words = line.split()
            if words[:1] == ["run"] or words[:2] == ["rlinf", "run"]:
                self.run = words[words.index("run") + 1].rstrip(":")
                return
        for pid in leaks.pids():
            environment = leaks.environment(pid)
            if environment.get(MARK) == self._mark and "RLINF_RUN_ID" in environment:
                self.run = environment["RLINF_RUN_ID"]
                return

    # -- who there is -------------------------------------------------------------------------------------------

    def processes(self) -> list[int]:
        """Everything of the run on any node, and everything that bears the test's mark but for what it started."""
        if not self.run:
            self._find_run()
        found = []
        for pid in leaks.pids():
            environment = leaks.environment(pid)
            ours = (environment.get(MARK) == self._mark or self._mark in words_of(pid)) and pid != self.process.pid
            if ours or (self.run and environment.get("RLINF_RUN_ID") == self.run):
                found.append(pid)
        return found

    def daemons(self, host: Host | None = None) -> list[int]:
        """The daemons proper, those of a host only where one is given, oldest first."""
        return [pid for pid in self._of_the_launcher(host) if "rlinf_launcher.daemon" in words_of(leaks.parent(pid))]

    def guardians(self, host: Host | None = None) -> list[int]:
        return [
            pid for pid in self._of_the_launcher(host) if "rlinf_launcher.daemon" not in words_of(leaks.parent(pid))
        ]

    def _of_the_launcher(self, host: Host | None) -> list[int]:
        there = self.processes() if host is None else set(self.processes()) & set(host.processes())
        return sorted(pid for pid in there if "rlinf_launcher.daemon" in words_of(pid))

    def worker(self, who: str) -> int:
        """The process of a worker, by what its lines begin with."""
        head = f"[{who}] littered by "

        def lines() -> list[str]:
            return [line for line in self.out.splitlines(True) if line.startswith(head) and line.endswith("\n")]

        self.until(lambda: bool(lines()))  # workers' lines may be printed later than what the script says
        (line,) = lines()
        return int(line.split()[-1])

    def child(self, word: str) -> int:
        """The launcher's child with that word on its command line."""
        children = [pid for pid in leaks.pids() if leaks.parent(pid) == self.process.pid]
        (pid,) = [pid for pid in children if word in words_of(pid)]
        return pid

    # -- what is left -------------------------------------------------------------------------------------------

    def tree(self, pid: int) -> list[int]:
        """A process and all that descends from it, itself first."""
        return [pid, *(one for one in leaks.pids() if pid in leaks.ancestors(one))]

    def orphans(self, deadline: float) -> list[str]:
        """What is left of the run once nothing is, or at the deadline (of the monotonic clock)."""
        while (pids := self.processes()) and time.monotonic() < deadline:
            leaks.wait_ended(pids, deadline - time.monotonic())
        return [f"{pid} {' '.join(words_of(pid))}" for pid in pids]

    def directories(self) -> list[str]:
        """The run's directories, on all hosts."""
        assert self.run
        places = [os.environ["XDG_RUNTIME_DIR"], os.environ["TMPDIR"]]
        found = [str(path) for place in places for path in Path(place).glob(f"rlinf-*{self.run}*")]
        for host in self._hosts or ():
            listed = host.run(["sh", "-c", f"ls -d /tmp/rlinf-*{self.run}*"], check=False)
            found += [f"{host.hostname}:{path}" for path in listed.stdout.split()]
        return found


def words_of(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    return []


if __name__ == "__main__":
    script(sys.argv[1])
