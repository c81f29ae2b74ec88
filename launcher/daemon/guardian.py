"""Node guardian: forks the daemon; when the daemon or the lifeline (stdin) ends, it kills and removes leftovers.

The guardian only waits for the daemon's end, or for the end of its own stdin, the *lifeline*, which the kernel closes
when the launcher, the ssh client or the embedding process ends, even by SIGKILL.  As a subreaper it adopts all
processes that the daemon and its workers leave behind, in any session and at any depth, and kills them.  It also kills
a daemon that is silent beyond its lease, because other nodes have declared it lost and may restart its ranks.

If the guardian itself is killed, the kernel sends SIGTERM to the daemon, which then shuts down and kills leftovers
itself, because it is a subreaper, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from .sign_of_life import SignOfLife

_PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36

PREPARED_DIR: Final = "RLINF_PREPARED_DIR"
"""Environment variable through which a preflight passes its run directory to the guardian that it then execs."""

TRACKERS: Final = (b"resource_tracker import main", b"torch_shm_manager")
"""Command-line parts of trackers (Python's, joblib's, torch's), which remove shared memory after its last user."""

TRACKERS_S: Final = 3.0
"""Seconds for trackers to exit after all other processes have ended; torch's tracker waits 2 s before it cleans up."""

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)

_ORDERLY_END_S: Final = 4.0  # limit for the daemon's shutdown after the lifeline was cut

_LACKS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

_AGAIN_S: Final = 0.05  # seconds until a search that lacked descriptors is repeated

_GRACE_S: Final = 0.5
"""Extra seconds for a silent daemon to recover, because the whole machine may have been suspended."""


def prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def children() -> list[int]:
    return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in _children_of(task)]


def _children_of(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError as error:
        if error.errno in _LACKS:
            raise
        return []  # the thread has ended


def is_tracker(pid: int) -> bool:
    """True if a process removes shared memory after its last user; if killed too early, it leaves the memory behind."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(part in words for part in TRACKERS)


def remove_cuda_files(pid: int) -> None:
    """Remove the files of CUDA events that a process shared; CUDA does so at ``exit()``, but not after a kill."""
    for path in Path("/dev/shm").glob(f"cuda.shm.*.{pid:x}.*"):
        with contextlib.suppress(OSError):
            path.unlink()


def guard(daemon: Callable[[bytes, int, SignOfLife], int]) -> NoReturn:
    """Fork the daemon, wait until it or the lifeline ends, clean up, and exit with the daemon's code.

    Args:
        daemon: receives the bytes of stdin up to at least the first line, a descriptor to which to write the path of
            the folder to remove, and its sign of life.
    """
    # Some supervisors start their children with SIGCHLD ignored, in which case the kernel discards exit statuses.
    # tests/test_environments.py
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    line = read_first_line(os.environ.pop(PREPARED_DIR, ""))
    # Become a subreaper before the fork, so that from the start the guardian, and not init, adopts whatever the daemon
    # leaves. The child checks its parent after setting PDEATHSIG, because the kernel sends no signal if the guardian
    # was killed before that call.
    # tests/test_orphans.py::test_nothing_is_left_of_a_plain_script
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    guardian = os.getpid()
    try:
        read_end, write_end = os.pipe()
        sign = SignOfLife()
        pid = os.fork()
    except OSError as error:  # a limit on processes or open files, for example
        remove(made_before(line))
        sys.exit(f"rlinf daemon: it cannot be forked: {error}")
    if pid == 0:
        os.close(read_end)
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != guardian:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        code = daemon(line, write_end, sign)
        sweep()
        os._exit(code)
    os.close(write_end)
    for number in (*_ENDING, signal.SIGINT):
        signal.signal(number, lambda *_: _signal(pid, signal.SIGTERM))
    # The preflight, which exec'ed this program, may have left signals blocked.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # SIGUSR1 kills the daemon immediately, because a lost daemon may be stopped and unable to handle SIGTERM.
    signal.signal(signal.SIGUSR1, lambda *_: _signal(pid, signal.SIGKILL))
    code, lifeline_cut = _watch(pid, sign)
    with open(read_end, "rb") as folder:
        paths = [path for path in (os.fsdecode(folder.read()), *made_before(line)) if path]
    if lifeline_cut:
        end_scripts(paths)
    remove(paths)
    os._exit(code)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the daemon has ended, and the cleanup is running
        os.kill(pid, number)


def read_first_line(prepared: str) -> bytes:
    """Read stdin up to at least its first line, the configuration; on end-of-file remove ``prepared`` and exit."""
    data = b""
    while b"\n" not in data:
        piece = os.read(0, 65536)
        if not piece:
            if prepared:
                shutil.rmtree(prepared, ignore_errors=True)
            sys.exit("rlinf daemon: stdin ended before the first line: it is started by rlinf-launch or Cluster()")
        data += piece
    return data


def made_before(line: bytes) -> list[str]:
    """Return the node's folder if the launcher's configuration names a run directory that existed before the daemon."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        config = json.loads(line.partition(b"\n")[0])
        return [f"{config['run_dir']}/node-{config['node']}"] if config["run_dir"] else []
    return []


def end_scripts(paths: list[str]) -> None:
    """Kill processes attached to sockets in these folders, and their descendants, if the launcher no longer can."""
    marks = {os.fsencode(f"RLINF_NODE_SOCKET={path}/node.sock") for path in paths}
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if place.name.isdigit() and not marks.isdisjoint((place / "environ").read_bytes().split(b"\0")):
                pid = int(place.name)
                if not is_tracker(pid):  # a tracker exits after its last client
                    os.kill(pid, signal.SIGKILL)


def remove(paths: list[str]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):  # the run directory may contain another node's folder
            Path(path).parent.rmdir()


def _watch(pid: int, sign: SignOfLife) -> tuple[int, bool]:
    """Wait until the daemon has ended or must be killed; return its exit code, and True if the lifeline was cut."""
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(0, select.POLLRDHUP)
    poll.register(ended, select.POLLIN)
    poll.register(sign, select.POLLIN)
    deadline: float | None = None
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        ready = {fd for fd, _ in poll.poll(left)}
        if 0 in ready:
            # The daemon notices the cut, too, and shuts down; the deadline is for a daemon that cannot.
            poll.unregister(0)
            deadline = time.monotonic() + _ORDERLY_END_S
        if ended in ready or (deadline is not None and not ready):
            break
        if sign.fileno() in ready:
            select.select([ended], [], [], _GRACE_S)
            if sign.has_run_out:
                sys.stderr.write(f"rlinf daemon: {pid} is silent for longer than its lease (stopped?): its node ends\n")
                break
    code = sweep().get(pid, 1)
    return 128 - code if code < 0 else code, deadline is not None


def sweep() -> dict[int, int]:
    """Kill and reap children, and the orphans that they leave behind, until none remain; map each pid to its exit code.

    Trackers of shared memory come last, and are killed only if they do not exit by themselves.
    """
    codes: dict[int, int] = {}
    while True:
        try:
            found = children()
        except OSError as error:  # the machine has no file left, but nobody else ends these processes
            if error.errno not in _LACKS:
                raise
            time.sleep(_AGAIN_S)
            continue
        workers = [child for child in found if not is_tracker(child)]
        if not workers:
            _await_ends(found, TRACKERS_S)
        killed = [child for child in workers or found if _kill(child)]
        try:
            # Do not wait if all that is left runs as another user, because only its own end would end the wait.
            pid, status = os.waitpid(-1, os.WNOHANG if found and not killed else 0)
        except ChildProcessError:
            return codes
        if not pid:
            return codes
        codes[pid] = os.waitstatus_to_exitcode(status)
        remove_cuda_files(pid)


def _kill(child: int) -> bool:
    try:
        os.kill(child, signal.SIGKILL)
    except PermissionError:  # the child now runs as another user, as with sudo
        return False
    return True


def _await_ends(pids: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for pid in pids:
        with contextlib.suppress(OSError), open(os.pidfd_open(pid)) as ended:
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
