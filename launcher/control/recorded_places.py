"""Discovery of live and ended runs that have left files on this machine, and choice of one by its id or log folder."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rlinf_async._recorder.run_files import RunFiles, temporary_folder

from .run_places import LocalRun, NoSuchRun, by, find_runs, latest, node_facts, unknown

_RUN: Final = re.compile(r"[0-9a-f]{8}")


def choose_recorded(wanted: str | None, places: Sequence[Path], usage: str = "") -> LocalRun:
    """Return the run named by its id, a prefix of the id, or its log directory; by default, the only live run.

    The error shows ``usage``, the command with ``RUN``.  Raises NoSuchRun, which lists the latest runs.
    """
    if wanted is not None and ("/" in wanted or Path(wanted).is_dir()):
        return _run_in(Path(wanted), find_runs(places))
    runs = find_recorded(places)
    meant = [run for run in runs if run.is_alive if wanted is None or run.run.startswith(wanted)]
    if not meant and wanted is not None:
        meant = [run for run in runs if run.run.startswith(wanted)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        text = f"{len(meant)} runs {'are alive here' if wanted is None else 'begin so'}: name one of them{by(usage)}"
    elif wanted is None:
        text = "no run of this user is alive on this machine: name one that has ended, or the directory of its logs"
        text += by(usage)
    else:
        text = (
            unknown(wanted, places) + "\n  fix: of a run with --log-dir that has ended, name the directory of its logs"
        )
        text += by(usage.replace("RUN", "./logs"))
    raise NoSuchRun(text, latest(meant or runs))


def find_recorded(places: Sequence[Path]) -> list[LocalRun]:
    """Return runs with a run directory or logs in these places, or logs in the default place, latest last."""
    found = {run.run: run for run in find_runs(places)}
    for logs in _log_directories(dict.fromkeys([*places, temporary_folder()])):
        with contextlib.suppress(OSError):  # the directory may just have been removed
            run = found.setdefault(logs.name, LocalRun(logs.name, logs.stat().st_mtime))
            run.logs = run.logs or logs
    return sorted(found.values(), key=lambda run: (run.since, run.run))


def _log_directories(places: Sequence[Path] | dict[Path, None]) -> Iterator[Path]:
    # ``launcher/daemon/run_logs.py`` creates these directories; other users' directories are omitted.
    for place in places:
        for parent in sorted(place.glob(f"rlinf-logs-{os.getuid()}*")):
            if _is_own(parent):
                yield from (logs for logs in sorted(parent.iterdir()) if _RUN.fullmatch(logs.name) and _is_own(logs))


def _is_own(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:  # another process may remove old runs meanwhile
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _run_in(directory: Path, known: Sequence[LocalRun]) -> LocalRun:
    """Return the latest run with logs in a directory, which may have any name."""
    found = []
    for node in node_facts(RunFiles(directory)):
        with contextlib.suppress(ValueError, LookupError, TypeError):  # the file may belong to another program
            found.append((float(node["began"]), str(node["run"])))
    if not found:
        raise NoSuchRun(f"there is no log of a run in {directory}")
    since, run = max(found)
    return next((each for each in known if each.run == run), None) or LocalRun(run, since, logs=directory.absolute())
