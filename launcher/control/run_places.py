"""Discovery of this user's run directories on this machine, for live and ended runs, and choice of a run by its id."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlinf_async._recorder.run_files import RunFiles, temporary_folder
from rlinf_async._wire.local_socket import connect
from rlinf_async.errors import AuthError, RLinfAsyncError

_RUN_DIR: Final = re.compile(r"rlinf-(?:(?P<user>\d+)-)?(?P<run>[0-9a-f]{8})(?:-\d+)?")
"""Name of a run directory, as ``launcher/daemon/boot.py`` and ``launcher/remote/preflight.py`` create it."""
_NODE_DIR: Final = re.compile(r"node-(\d+)")
_MAX_LISTED: Final = 10


class NoSuchRun(RLinfAsyncError):
    """There is no such run, group or rank here; the error lists the existing runs."""

    def __init__(self, text: str, runs: Sequence[LocalRun] = ()) -> None:
        super().__init__(text)
        self.runs = runs

    def __str__(self) -> str:
        return "\n".join([*map(str, self.args), *(f"  {run}" for run in self.runs)])


@dataclass
class LocalRun:
    """A run that has, or had, nodes on this machine; an ended run may have left ``sockets`` (by node).

    ``since`` is when its first local node began to listen (seconds since 1970); ``is_alive`` is True if a local daemon
    listens.  ``script`` holds the drivers' command lines and working directories, if a daemon was asked.
    """

    run: str
    since: float
    sockets: dict[int, Path] = field(default_factory=dict)
    is_alive: bool = False
    logs: Path | None = None
    script: str = ""

    @property
    def since_text(self) -> str:
        return clock_text(self.since)

    def __str__(self) -> str:
        nodes = ", ".join(f"node {node}" for node in sorted(self.sockets))
        location = f"{nodes} here" if nodes else f"logs in {self.logs}"
        script = f", {self.script}" if self.script else ""
        state = f"alive, since {self.since_text}" if self.is_alive else end_text(self)
        return f"{self.run}  {state}, {location}{script}"


def clock_text(seconds: float) -> str:
    """Format seconds since 1970 as ``18:10:16``, with the date unless it is today."""
    time_ = time.localtime(seconds)
    return time.strftime("%H:%M:%S" if time_[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M:%S", time_)


def folders(folder: Path | None, environ: Mapping[str, str]) -> list[Path]:
    """Return the folders that may contain run directories; only ``folder`` if the user names one."""
    if folder is not None:
        return [folder]
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    found = [Path(runtime), temporary_folder(), Path("/tmp")]
    return list(dict.fromkeys(found))


def find_runs(places: Sequence[Path]) -> list[LocalRun]:
    found: dict[str, LocalRun] = {}
    for place in places:
        for directory in (place, *_entries(place)):
            match = _RUN_DIR.fullmatch(directory.name)
            if match is not None and (match["user"] or str(os.getuid())) == str(os.getuid()):
                _add_nodes(found, match["run"], directory)
    return sorted(found.values(), key=lambda run: (run.since, run.run))


def choose(runs: Sequence[LocalRun], wanted: str | None, places: Sequence[Path], usage: str = "") -> LocalRun:
    """Return the live run named by its id or a prefix of the id; if no name is given, return the only live run.

    The error shows ``usage``, the command with ``RUN``.  Raises NoSuchRun, which lists the existing runs.
    """
    meant = [run for run in runs if wanted is None or run.run.startswith(wanted)]
    alive = [run for run in meant if run.is_alive]
    if len(alive) == 1:
        return alive[0]
    if len(alive) > 1:
        raise NoSuchRun(f"{len(alive)} runs are alive here: name one of them{by(usage)}", alive)
    if len(meant) == 1:
        raise NoSuchRun(ended_text(meant[0]))
    if meant and wanted is not None:
        state = "none is alive here" if any(map(other_hosts, meant)) else "all have ended"
        raise NoSuchRun(f"{len(meant)} runs begin with {wanted!r}, and {state}", latest(meant))
    if wanted is None:
        text = f"no run of this user is alive on this machine (looked in {', '.join(map(str, places))})"
    else:
        text = unknown(wanted, places)
    if not runs:
        text += "\n  fix: --run-dir DIR names the folder that run directories lie in ($TMPDIR of the run)"
    raise NoSuchRun(text, latest(runs))


def latest(runs: Sequence[LocalRun]) -> Sequence[LocalRun]:
    return sorted(runs, key=lambda run: run.is_alive)[-_MAX_LISTED:]


def unknown(wanted: str, places: Sequence[Path]) -> str:
    return f"there is no run {wanted!r} of this user on this machine (looked in {', '.join(map(str, places))})"


def ended_text(run: LocalRun) -> str:
    if run.logs is None:
        return f"run {run.run} has ended, and where its logs are is not known\n  fix: `rlinf-ctl bundle DIR` names them"
    return (
        f"run {run.run} has {end_text(run)}; its logs are in {run.logs}\n"
        f"  fix: `rlinf-ctl logs --run {run.run}` prints them; `rlinf-ctl bundle {run.run}` keeps, and "
        f"`rlinf-ctl page {run.run}` shows, what is known of it"
    )


def end_text(run: LocalRun) -> str:
    """Describe when a run without a local daemon ended, and where it may still be running.

    The time is the last change to the run's logs or, if it has none, the run's start.
    """
    files = [] if run.logs is None else RunFiles(run.logs).listing()
    when = clock_text(max((file.changed for file in files), default=run.since))
    hosts = other_hosts(run)
    return f"ended here at about {when}, and may go on at {', '.join(hosts)}" if hosts else f"ended at about {when}"


def other_hosts(run: LocalRun) -> list[str]:
    """Return the run's other machines, where its daemons may still be running."""
    nodes = [] if run.logs is None else [node for node in node_facts(RunFiles(run.logs)) if node["run"] == run.run]
    hosts = {str(each.get("host") or "") for node in nodes for each in (node, *node.get("peers", ()))}
    return sorted(hosts - {"", socket.gethostname()})


def node_facts(files: RunFiles) -> Iterator[dict[str, Any]]:
    """Yield the facts that nodes wrote next to their logs, including other runs' nodes in the same directory."""
    for file in files.listing():
        # The file may be truncated or belong to another program.
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            if file.path.startswith("recorder/node-"):
                yield json.loads(files.read(file.path, 0, file.nbytes))


def by(usage: str) -> str:
    """Return the command with a run's name, as a suffix for the first line of an error."""
    return f": `{usage}`" if usage else ""


def _entries(place: Path) -> list[Path]:
    try:
        return sorted(place.iterdir())
    except OSError:
        return []


def _add_nodes(found: dict[str, LocalRun], name: str, directory: Path) -> None:
    for entry in _entries(directory):
        node = _NODE_DIR.fullmatch(entry.name)
        path = entry / "node.sock"
        with contextlib.suppress(OSError):  # the directory may just have been removed
            status = path.lstat()
            if node is None or status.st_uid != os.geteuid():
                continue
            run = found.setdefault(name, LocalRun(name, status.st_mtime))
            run.since = min(run.since, status.st_mtime)
            run.sockets[int(node[1])] = path
            run.is_alive = listens(path) or run.is_alive
            if (entry / "logs").is_dir():  # ``boot_of`` in ``launcher/daemon/boot.py`` creates this directory
                run.logs = (entry / "logs").resolve()


def listens(path: Path) -> bool:
    """True if a daemon has this socket open, even a stopped one, or if the state is unknown."""
    try:
        connect(str(path), waits=False).close()
    except (AuthError, ConnectionError, FileNotFoundError):
        return False
    except OSError:  # the run may be alive: a full backlog at the daemon, or no descriptors left here
        return True
    return True
