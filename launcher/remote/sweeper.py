"""Remote program of ``--sweep``: kills a run's remaining processes on its host, and removes the run's directories.

It first checks whether the run is alive, and kills nothing until the launcher, which knows all hosts, tells it to.
Like ``preflight.py``, it is one file that needs only the standard library, in the syntax of Python 3.6.
"""
# ruff: noqa: UP006, UP035

import contextlib
import glob
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List

_GRACE_S = 3.0
_DEATH_S = 15.0  # limit from SIGKILL until a process has ended; the kernel may have to free a lot of memory
# The same values as in launcher/daemon/guardian.py.
_TRACKERS = (b"resource_tracker import main", b"torch_shm_manager")
_TRACKERS_S = 3.0
_ANSWER_TIMEOUT_S = 3.0
_NOTE_TIMEOUT_S = 1.0
_NOTE = "swept-by"
"""File that tells ``launcher/daemon/node.py`` the reason for its SIGTERM; the node passes the reason on."""
_BASES = (b"TMPDIR=", b"XDG_RUNTIME_DIR=")


def main(read: Callable[[int], bytes]) -> None:
    """Serve one request.  ``read(n)`` returns exactly ``n`` bytes of stdin."""
    request = json.loads(read(int(read(10))).decode())
    run = request["run"]
    alive = [str(place) for place in sockets(run_dirs(run)) if answers(place)]
    tell(request, {"event": "looked", "alive": alive})
    while read(1) != b"\n":  # read() exits this process if the launcher closes the connection
        pass
    ended: List[str] = []
    places = run_dirs(run)
    sessions = sessions_of(run, places)
    found = processes_of(run, sessions)
    ended += [shown(pid) for pid in sorted(found)]
    killed = {*sessions, *found}
    leave_notes([Path(each).parent for each in alive], found, request["by"])
    send(found, signal.SIGTERM)
    wait(lambda: not processes_of(run, sessions), _GRACE_S)
    deadline = time.monotonic() + _DEATH_S
    found = processes_of(run, sessions)
    while found and time.monotonic() < deadline:
        workers = [pid for pid in found if not is_tracker(pid)]
        if not workers:  # trackers remove shared memory after its last user has ended, and then exit
            wait(lambda: not processes_of(run, sessions), _TRACKERS_S)
        killed.update(found)
        send(workers or found, signal.SIGKILL)
        time.sleep(0.02)
        found = processes_of(run, sessions)
    removed = []
    for place in places:
        shutil.rmtree(str(place), ignore_errors=True)
        removed.append(str(place))
    remove_cuda_files(killed)
    answer = {"event": "swept", "ended": ended, "removed": removed, "left": sorted(found)}
    tell(request, answer)


def wait(is_over: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_over() and time.monotonic() < deadline:
        time.sleep(0.05)  # the processes are not this one's children, and Python before 3.9 has no pidfd


def tell(request: Dict[str, Any], message: Dict[str, Any]) -> None:
    os.write(1, (request["marker"] + json.dumps(message) + "\n").encode())


def answers(path: Path) -> bool:
    """True if a daemon serves this socket: a live daemon, unlike a stopped one, closes a connection after shutdown."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_ANSWER_TIMEOUT_S)
        try:
            folder = os.open(str(path.parent), os.O_PATH | os.O_DIRECTORY)  # the full path may be too long for a socket
            try:
                sock.connect(f"/proc/self/fd/{folder}/{path.name}")
            finally:
                os.close(folder)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(1)
        except OSError:
            return False
    return True


def leave_notes(nodes: List[Path], found: "Dict[int, List[bytes]]", by: str) -> None:
    """Tell live daemons why they will end, and wait until they have read the note before any process is killed.

    Otherwise a launcher that sees its script end first would report a failed run.
    """
    notes = [node / _NOTE for node in nodes]
    for note in notes:
        try:
            note.write_text(by)
        except OSError:
            continue  # the node has just ended
    if notes:
        send([pid for pid in found if "rlinf_launcher.daemon" in shown(pid)], signal.SIGTERM)
    deadline = time.monotonic() + _NOTE_TIMEOUT_S
    while any(note.exists() for note in notes) and time.monotonic() < deadline:
        time.sleep(0.01)


def processes_of(run: str, sessions: "Dict[int, int]") -> "Dict[int, List[bytes]]":
    """Map pids to environments for this user's processes that have the run's id, or belong to one of these sessions.

    This process is omitted.  ``sessions`` maps session numbers to the start time of their first process.
    """
    mark = f"RLINF_RUN_ID={run}".encode()
    found = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            try:
                if place.stat().st_uid == os.getuid():
                    environ = (place / "environ").read_bytes().split(b"\0")
                    if (mark in environ or is_in(sessions, place)) and not is_dead(place):
                        found[int(place.name)] = environ
            except OSError:
                continue  # the process has just ended, or belongs to another user
    return found


def remove_cuda_files(pids: Iterable[int]) -> None:
    """Remove files of CUDA events that ended processes have shared; ``guardian.py`` explains why."""
    for pid in pids:  # some of the pids may be zombies
        for path in Path("/dev/shm").glob(f"cuda.shm.*.{pid:x}.*"):
            with contextlib.suppress(OSError):
                path.unlink()


def sessions_of(run: str, places: List[Path]) -> "Dict[int, int]":
    """Map the sessions of workers and their descendants to the start time of their first process.

    Daemons have recorded the workers' sessions.  A session that contains a worker's descendant belongs entirely to the
    run.  The sessions identify processes that have overwritten their environment, as setproctitle does.
    """
    boot = (Path("/proc/sys/kernel/random") / "boot_id").read_text().strip()
    found = {}
    for path in [path for place in places for path in place.glob("node-*/sessions")]:
        for line in text_of(path).splitlines():
            if len(line.split()) != 3:  # truncated by a full disk
                continue
            number, start, its_boot = line.split()
            leader = start_of(Path("/proc") / number)
            if its_boot == boot and leader in (0, int(start)):  # another process may have reused the number
                found[int(number)] = int(start)
    worker = b"RLINF_WORKER="
    for pid, environ in processes_of(run, {}).items():
        try:
            session = os.getsid(pid)
        except OSError:
            continue
        if session and any(each.startswith(worker) and each.strip(b"0") != worker for each in environ):
            found.setdefault(session, 0)
    found.pop(os.getsid(0), None)
    return found


def is_in(sessions: "Dict[int, int]", place: Path) -> bool:
    session = os.getsid(int(place.name))
    return session in sessions and start_of(place) >= sessions[session]


def start_of(place: Path) -> int:
    """Return a process's start time in ticks; 0 if there is no such process."""
    fields = text_of(place / "stat").rpartition(")")[2].split()
    return int(fields[19]) if fields else 0


def is_tracker(pid: int) -> bool:
    try:
        words = (Path("/proc") / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
    return any(part in words for part in _TRACKERS)


def is_dead(place: Path) -> bool:
    return text_of(place / "stat").rpartition(")")[2].split()[:1] in ([], ["Z"], ["X"])


def text_of(path: Path) -> str:
    """Return a file's text; empty if it was removed.  A process's name, truncated to 15 bytes, may be invalid text."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def shown(pid: int) -> str:
    try:
        words = (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        words = ""
    return f"{pid} {words.strip()[:100]}"


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


def run_dirs(run: str) -> List[Path]:
    """Return the run's directories on this machine, including other nodes', found through processes' environments."""
    bases = {os.environ.get("XDG_RUNTIME_DIR", "")}
    with contextlib.suppress(OSError):  # there may be no writable folder for temporary files
        bases.add(tempfile.gettempdir())
    for environ in processes_of(run, {}).values():
        bases |= {os.fsdecode(each.partition(b"=")[2]) for each in environ if each.startswith(_BASES)}
    found: Dict[str, Any] = {}
    for base in filter(None, bases):
        for name in (f"rlinf-{os.getuid()}-{run}", f"rlinf-{run}"):
            pattern = os.path.join(glob.escape(base), name)  # noqa: PTH118  # Path.glob may raise
            for place in map(Path, glob.glob(pattern) + glob.glob(pattern + "-*")):  # noqa: PTH207
                with contextlib.suppress(OSError):  # it was just removed
                    if place.is_dir() and not place.is_symlink() and place.stat().st_uid == os.getuid():
                        found[str(place)] = place
    return [found[name] for name in sorted(found)]


def sockets(places: List[Path]) -> List[Path]:
    return [path for place in places for path in sorted(place.glob("node-*/node.sock"))]
