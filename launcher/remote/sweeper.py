"""Remote program of ``--sweep``: kills what is left of a run on its host, and removes the run's directories.

One file, the standard library, the syntax of Python 3.6; see ``preflight.py``.
"""
# ruff: noqa: UP006, UP035

import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Set

_GRACE_S = 3.0
_MAX_ROUNDS = 20


def main(read: Callable[[int], bytes]) -> None:
    """Serves one request.  ``read(n)`` gives exactly ``n`` bytes of stdin."""
    request = json.loads(read(int(read(10))).decode())
    run = request["run"]
    ended: List[str] = []
    found = processes_of(run)
    ended += [shown(pid) for pid in sorted(found)]
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
    for place in run_dirs(run):
        shutil.rmtree(str(place), ignore_errors=True)
        removed.append(str(place))
    answer = {"event": "swept", "ended": ended, "removed": removed, "left": sorted(processes_of(run))}
    os.write(1, (request["marker"] + json.dumps(answer) + "\n").encode())


def processes_of(run: str) -> Set[int]:
    """Pids of this user's processes that bear the run's id in their environment; not this one."""
    mark = f"RLINF_RUN_ID={run}".encode()
    found = set()
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            try:
                is_mine = place.stat().st_uid == os.getuid()
                if is_mine and mark in (place / "environ").read_bytes().split(b"\0") and not is_dead(place):
                    found.add(int(place.name))
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


def send(pids: Set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


def run_dirs(run: str) -> List[Path]:
    """The run's directories, those of further nodes on this machine among them."""
    places = [(Path(tempfile.gettempdir()), f"rlinf-{os.getuid()}-{run}")]
    if os.environ.get("XDG_RUNTIME_DIR"):
        places.append((Path(os.environ["XDG_RUNTIME_DIR"]), f"rlinf-{run}"))
    found: Dict[str, Any] = {}
    for base, name in places:
        for place in [base / name, *base.glob(name + "-*")]:
            if place.is_dir() and not place.is_symlink() and place.stat().st_uid == os.getuid():
                found[str(place)] = place
    return [found[name] for name in sorted(found)]
