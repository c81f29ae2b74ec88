"""Remote program of ``--sweep``: kills what is left of a run on its host, and removes the run's directories.

It looks first, as the run may be alive here or elsewhere: nothing is ended until the near side says so.
One file, the standard library, the syntax of Python 3.6; see ``preflight.py``.
"""
# ruff: noqa: UP006, UP035

import contextlib
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
_DEATH_S = 15.0
"""From SIGKILL to the end of a process whose memory the kernel takes back."""
_TRACKERS = (b"resource_tracker import main", b"torch_shm_manager")
_TRACKERS_S = 3.0
"""As in ``launcher/daemon/guardian.py``."""
_ANSWER_TIMEOUT_S = 3.0
_NOTE_TIMEOUT_S = 1.0
_NOTE = "swept-by"
"""``launcher/daemon/node.py`` looks for it when it gets SIGTERM, passes it on to its launcher, and removes it."""
_BASES = (b"TMPDIR=", b"XDG_RUNTIME_DIR=")


def main(read: Callable[[int], bytes]) -> None:
    """Serve one request.  ``read(n)`` gives exactly ``n`` bytes of stdin."""
    request = json.loads(read(int(read(10))).decode())
    run = request["run"]
    alive = [str(place) for place in sockets(run_dirs(run)) if answers(place)]
    tell(request, {"event": "looked", "alive": alive})
    while read(1) != b"\n":  # ends this process where the near side goes away instead
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
        others = [pid for pid in found if not is_tracker(pid)]
        if not others:  # they remove shared memory once its users have ended, and end themselves
            wait(lambda: not processes_of(run, sessions), _TRACKERS_S)
        killed.update(found)
        send(others or found, signal.SIGKILL)
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
        time.sleep(0.05)  # they are not our children: there is nothing to wait on before Python 3.9


def tell(request: Dict[str, Any], message: Dict[str, Any]) -> None:
    os.write(1, (request["marker"] + json.dumps(message) + "\n").encode())


def answers(path: Path) -> bool:
    """Whether a daemon serves this socket: it closes what is shut, where one that is stopped does nothing."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_ANSWER_TIMEOUT_S)
        try:
            folder = os.open(str(path.parent), os.O_PATH | os.O_DIRECTORY)  # its own path may be too long for a socket
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
    """Tell live daemons who ends them, and waits for them to have read it before anything else of the run ends.

    A launcher that heard of its script's end first would take the run for one that has failed.
    """
    notes = [node / _NOTE for node in nodes]
    for note in notes:
        try:
            note.write_text(by)
        except OSError:
            continue  # it has ended just now
    if notes:
        send([pid for pid in found if "rlinf_launcher.daemon" in shown(pid)], signal.SIGTERM)
    deadline = time.monotonic() + _NOTE_TIMEOUT_S
    while any(note.exists() for note in notes) and time.monotonic() < deadline:
        time.sleep(0.01)


def processes_of(run: str, sessions: "Dict[int, int]") -> "Dict[int, List[bytes]]":
    """Environments, by pid, of this user's processes that have the run's id there or are in these sessions.

    Not of this one.  ``sessions`` maps their numbers to the start of their first process.
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
                continue  # it has just ended, or is not ours to look into
    return found


def remove_cuda_files(pids: Iterable[int]) -> None:
    """Remove the files in which processes shared CUDA events that have ended; ``guardian.py`` says why."""
    for pid in pids:  # zombies may be among them
        for path in Path("/dev/shm").glob(f"cuda.shm.*.{pid:x}.*"):
            with contextlib.suppress(OSError):
                path.unlink()


def sessions_of(run: str, places: List[Path]) -> "Dict[int, int]":
    """Sessions of workers and of their descendants, by number, and the start of their first process.

    Daemons have recorded those of workers.  A session with a descendant of a worker in it is the run's as a whole.
    Processes are found by them that have overwritten their environment, as setproctitle does.
    """
    boot = (Path("/proc/sys/kernel/random") / "boot_id").read_text().strip()
    found = {}
    for path in [path for place in places for path in place.glob("node-*/sessions")]:
        for line in text_of(path).splitlines():
            if len(line.split()) != 3:  # a full disk has cut it off
                continue
            number, start, its_boot = line.split()
            leader = start_of(Path("/proc") / number)
            if its_boot == boot and leader in (0, int(start)):  # else the number is another process's now
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
    """When a process has started, in ticks; 0 where there is none."""
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
    """Empty where it has just gone.  A process's name, which the kernel cuts at 15 bytes, may be no text."""
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
    """The run's directories, those of further nodes on this machine among them, where it or this shell has them."""
    bases = {tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR", "")}
    for environ in processes_of(run, {}).values():
        bases |= {os.fsdecode(each.partition(b"=")[2]) for each in environ if each.startswith(_BASES)}
    found: Dict[str, Any] = {}
    for base in filter(None, bases):
        for name in (f"rlinf-{os.getuid()}-{run}", f"rlinf-{run}"):
            for place in [Path(base, name), *Path(base).glob(name + "-*")]:
                if place.is_dir() and not place.is_symlink() and place.stat().st_uid == os.getuid():
                    found[str(place)] = place
    return [found[name] for name in sorted(found)]


def sockets(places: List[Path]) -> List[Path]:
    return [path for place in places for path in sorted(place.glob("node-*/node.sock"))]
