"""Remote program of ``--sweep``: kills what is left of a run on its host, and removes the run's directories.

It looks first, as the run may be alive here or elsewhere: nothing is ended until the near side says so.
One file, the standard library, the syntax of Python 3.6; see ``preflight.py``.
"""
# ruff: noqa: UP006, UP035

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
_MAX_ROUNDS = 20
_ANSWER_TIMEOUT_S = 3.0
_NOTE_TIMEOUT_S = 1.0
_NOTE = "swept-by"
"""``launcher/daemon/node.py`` looks for it when it gets SIGTERM, passes it on to its launcher, and removes it."""
_BASES = (b"TMPDIR=", b"XDG_RUNTIME_DIR=")


def main(read: Callable[[int], bytes]) -> None:
    """Serves one request.  ``read(n)`` gives exactly ``n`` bytes of stdin."""
    request = json.loads(read(int(read(10))).decode())
    run = request["run"]
    alive = [str(place) for place in sockets(run_dirs(run)) if answers(place)]
    tell(request, {"event": "looked", "alive": alive})
    while read(1) != b"\n":  # ends this process where the near side goes away instead
        pass
    ended: List[str] = []
    found = processes_of(run)
    ended += [shown(pid) for pid in sorted(found)]
    places = run_dirs(run)
    leave_notes([Path(each).parent for each in alive], found, request["by"])
    send(found, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while processes_of(run) and time.monotonic() < deadline:
        time.sleep(0.05)  # they are not our children: there is nothing to wait on before Python 3.9
    for _ in range(_MAX_ROUNDS):
        found = processes_of(run)
        if not found:
            break
        send(found, signal.SIGKILL)
        time.sleep(0.02)
    removed = []
    for place in places:
        shutil.rmtree(str(place), ignore_errors=True)
        removed.append(str(place))
    answer = {"event": "swept", "ended": ended, "removed": removed, "left": sorted(processes_of(run))}
    tell(request, answer)


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
    """Tells live daemons who ends them, and waits for them to have read it before anything else of the run ends.

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


def processes_of(run: str) -> "Dict[int, List[bytes]]":
    """Environments of this user's processes that bear the run's id in them, by pid; not of this one."""
    mark = f"RLINF_RUN_ID={run}".encode()
    found = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            try:
                if place.stat().st_uid == os.getuid():
                    environ = (place / "environ").read_bytes().split(b"\0")
                    if mark in environ and not is_dead(place):
                        found[int(place.name)] = environ
            except OSError:
                continue  # it has just ended, or is not ours to look into
    return found


def is_dead(place: Path) -> bool:
    return (place / "stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")


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
    for environ in processes_of(run).values():
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
