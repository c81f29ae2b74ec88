"""Leftovers of a test: processes, threads, open files, shared memory, run directories, tasks.

    with leaks.none_left():
        ...                      # AssertionError that names each leaked thing

``conftest.py`` puts this around every test.  A module whose tests share a cluster says
``pytestmark = pytest.mark.shared_cluster`` and is counted once, at its end.

What other processes of the machine make is not counted: processes are told by their descent or by ``SESSION_MARK``, and
folders and names of shared memory stand in places of the session's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

SESSION_MARK = "RLINF_TEST_SESSION"
"""Set in the environment of every process that the tests start: test sessions side by side can tell theirs."""

INNOCENT_THREADS = {
    "libuv-worker": "libuv's pool starts with the first name lookup and never ends",
    "iou-": "the kernel's own helpers of an io_uring; they come and go as it likes",
    "pt_autograd_": "torch keeps one thread per device for backward passes",
    "event_engine": "gRPC's pool, which it ends and starts anew around every fork; what leaks in gRPC also has files",
    "lifeguard": "watches over that pool",
    "grpc_global_tim": "gRPC's timers, likewise",
}
"""Threads of C libraries, by the start of their names, that come once and never end."""


CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
"""Of ``<sched.h>`` and ``<sys/mount.h>``."""

_has_own_shared_memory = False

PATIENCE = 2.0
"""Seconds that things have to end by themselves before a test is blamed for them."""


@dataclass(frozen=True)
class Snapshot:
    """What there is now, for ``found_since``."""

    processes: frozenset[int]
    threads: frozenset[int]
    files: dict[int, str]
    mappings: frozenset[str]
    folders: frozenset[Path]


@contextlib.contextmanager
def none_left() -> Iterator[None]:
    """Fails if the block leaves anything; what is about to end has ``PATIENCE`` seconds for it.

    A block that raises is not blamed: its traceback holds on to what it used.  Processes that it left are ended in
    either case.
    """
    warm_up()
    before = take()
    try:
        yield
    except BaseException:
        end_processes_since(before)
        raise
    if found := settle(before):
        end_processes_since(before)
        raise AssertionError(told(found))


def take() -> Snapshot:
    return Snapshot(
        processes=frozenset(pids()),
        threads=frozenset(_thread_ids()),
        files=_open_files(),
        mappings=frozenset(_shared_mappings()),
        folders=frozenset(_shared_names()),
    )


def told(found: list[str]) -> str:
    return "left behind:\n" + "\n".join(f"  {thing}" for thing in found)


def settle(before: Snapshot) -> list[str]:
    """What is still left after ``PATIENCE`` seconds; comes back as soon as nothing is."""
    if not found_since(before):
        return []
    gc.collect()
    deadline = time.monotonic() + PATIENCE
    while (found := found_since(before)) and time.monotonic() < deadline:
        time.sleep(0.02)  # threads, files and folders tell nobody that they have gone
    return found


def found_since(before: Snapshot) -> list[str]:
    """One line for each thing that was not there before."""
    found = [f"process {pid} [{state}]: {command}" for pid, state, command in _new_processes(before)]
    found += [f"thread {name}" for name in _new_threads(before)]
    found += [f"open file {number} -> {target}" for number, target in _new_files(before)]
    found += [f"mapped memory {name}" for name in sorted(set(_shared_mappings()) - before.mappings)]
    found += [f"file or folder {path}" for path in sorted(set(_shared_names()) - before.folders)]
    return found


def leaked_tasks(before: Iterable[asyncio.Task[object]]) -> list[str]:
    """One line for each unfinished task of the running loop, but for the current one and those in ``before``."""
    left = asyncio.all_tasks() - set(before) - {asyncio.current_task()}
    return [f"task {task!r}" for task in left]


def processes_of_run(run_id: str) -> list[int]:
    """Pids of all processes on this machine whose environment names the run; zombies have no environment."""
    return [pid for pid in pids() if environment(pid).get("RLINF_RUN_ID") == run_id]


def wait_ended(pids: Iterable[int], timeout: float) -> list[int]:
    """Waits until all of ``pids`` have ended, ``timeout`` seconds at most; returns those that have not."""
    deadline = time.monotonic() + timeout
    left = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError), open(os.pidfd_open(pid)) as handle:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                left.append(pid)
    return left


def end_processes_since(before: Snapshot) -> None:
    """SIGKILL for new processes of this test session, and waits for them."""
    for pid, _, _ in _new_processes(before):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            wait_ended([pid], 5)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


_warm: set[str] = set()


def warm_up() -> None:
    """Lets libraries that are loaded take what they take once and keep for ever, so that no test is blamed.

    What they and the tests consist of is frozen: each full collection, as in ``settle``, would look at it for 0.3 s.
    """
    for library, start in {"uvloop": _start_uvloop, "torch": _start_torch, "tensordict": None}.items():
        if library in sys.modules and library not in _warm:
            _warm.add(library)
            if start is not None:
                start()
            gc.collect()
            gc.freeze()


def _start_uvloop() -> None:
    """The pipe through which libuv hears of signals, one for all loops."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))


def _start_torch() -> None:
    """The OpenMP pool, and the pipe of the libuv that its stores have of their own."""
    import torch

    torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]

    matrix = torch.ones(256, 256, requires_grad=True)
    (matrix @ matrix).sum().backward()


# ---- processes


def pids() -> Iterator[int]:
    """All processes of the machine."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def parent(pid: int) -> int:
    """0 where it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


def ancestors(pid: int) -> list[int]:
    """Its parent first, init left out."""
    found: list[int] = []
    while (pid := parent(pid)) > 1:
        found.append(pid)
    return found


def environment(pid: int) -> dict[str, str]:
    with contextlib.suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)
    return {}


def _new_processes(before: Snapshot) -> Iterator[tuple[int, str, str]]:
    """(pid, state, command line) of new processes of this session: they descend from the test process or bear the
    session's mark."""
    mark = os.environ.get(SESSION_MARK)
    for pid in set(pids()) - before.processes - {os.getpid()}:
        if os.getpid() in ancestors(pid) or (mark and environment(pid).get(SESSION_MARK) == mark):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                state = process.status()
                dead = state == psutil.STATUS_ZOMBIE
                yield pid, state, f"({process.name()}, not waited for)" if dead else " ".join(process.cmdline())


# ---- this process: threads, files, memory


def _thread_ids() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def _new_threads(before: Snapshot) -> Iterator[str]:
    known = {thread.native_id: thread for thread in threading.enumerate()}
    own_name = Path("/proc/self/comm").read_text().strip()
    for number in set(_thread_ids()) - before.threads:
        if thread := known.get(number):
            yield repr(thread.name) + (" (daemon)" if thread.daemon else "")
            continue
        with contextlib.suppress(OSError):
            name = Path(f"/proc/self/task/{number}/comm").read_text().strip()
            # OpenMP and BLAS pools have no names of their own; they grow with the work and never shrink
            of_a_pool = name == own_name and "numpy" in sys.modules
            if not of_a_pool and not name.startswith(tuple(INNOCENT_THREADS)):
                yield f"{name!r} (of a C library)"


def _open_files() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _new_files(before: Snapshot) -> Iterator[tuple[int, str]]:
    now = _open_files()
    moved = Counter(target for number, target in before.files.items() if now.get(number) != target)
    for number, target in now.items():
        if before.files.get(number) != target:
            if moved[target]:
                moved[target] -= 1  # closed, and opened again under another number
            else:
                yield number, target + _peers_of(number) if target.startswith("socket:") else target


def _peers_of(number: int) -> str:
    for connection in psutil.Process().net_connections("all"):
        if connection.fd == number:
            return f" {connection.laddr or ''} {connection.raddr or ''} {connection.status}"
    return ""


def _shared_mappings() -> Iterator[str]:
    with open("/proc/self/maps") as file:
        lines = file.read()  # a thousand with torch, twice a test: seldom is one of them looked at
    if "/memfd:" in lines or "/dev/shm/" in lines:
        for line in lines.splitlines():
            if "/memfd:" in line or "/dev/shm/" in line:
                fields = line.split(maxsplit=5)
                yield f"{fields[5].strip()} (inode {fields[4]})"


# ---- names that outlive processes


def take_own_shared_memory() -> None:
    """Gives this process, and what it starts, a ``/dev/shm`` of its own: then all in it is this session's.

    Only root may, and not in every container; elsewhere ``/dev/shm`` is everybody's, and nobody looks there for leaks.
    """
    global _has_own_shared_memory
    libc = ctypes.CDLL(None)
    _has_own_shared_memory = (
        libc.unshare(CLONE_NEWNS) == 0
        and libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0
        and libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"mode=1777") == 0
    )


def _shared_names() -> Iterator[Path]:
    """Entries of this session's /dev/shm, and run directories in both of the places where they can be."""
    if _has_own_shared_memory:
        yield from _entries("/dev/shm")
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield from _entries(runtime, "rlinf-")
    yield from _entries(os.environ.get("TMPDIR") or tempfile.gettempdir(), f"rlinf-{os.getuid()}-")


def _entries(folder: str, start: str = "") -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):
        yield from (Path(folder, name) for name in os.listdir(folder) if name.startswith(start))
