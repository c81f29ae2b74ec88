"""``RunLogs``: a run's log directory, private to the user and locked during the run; prunes older directories."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rlinf_async._recorder.run_files import bundle_name, usual_log_parent

_MAX_REMOVED_RUNS: Final = 50  # limit per start, so that thousands of old runs do not delay it

LATEST: Final = "latest"

_RUN: Final = re.compile(r"[0-9a-f]{8}")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class RunLogs:
    """A node's log directory.  A run is alive while one of its daemons holds a lock on its directory.

    Args:
        asked: the user's own choice (``--log-dir``), used unchanged and never pruned.
        spare: fallback folder if the temporary directory is unusable.

    Attributes:
        path: the directory.
        note: message for the user, usually empty.
    """

    def __init__(self, run: str, asked: str | None, spare: Path) -> None:
        self.note = ""
        self._parent: Path | None = None
        self._lock = -1
        if asked is not None:
            self.path = Path(asked)
            return
        try:
            self._parent, refused = _find_parent(Path(tempfile.gettempdir()))
            self.path = self._open(self._parent, run)
            if refused:
                self.note = f"{refused}: it is left alone, and the logs of this run are in {self.path}"
        except OSError as error:  # a full or read-only disk must not fail the run
            self._parent = None
            self.path = spare
            self.note = f"no logs can be kept: {error}; those of this run are in {spare} and end with it"

    def _open(self, parent: Path, run: str) -> Path:
        # Hold the parent's lock while a directory is created and locked, and while candidates for removal are locked;
        # otherwise a prune could mistake a starting run that has no lock yet for a dead run.
        with _locked(parent):
            path = parent / run
            # Another node of this run on the same machine may have created the directory.
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            self._lock = os.open(path, _DIRECTORY)
            with contextlib.suppress(OSError):  # if the file system has no locks, nothing is pruned
                fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            _point(parent / LATEST, run)
        return path

    def close(self) -> None:
        """Release the lock, so that the run counts as ended."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def prune(self, keep: int) -> None:
        """Remove ended runs, except the newest ``keep`` runs with a bundle and the newest ``keep`` runs without one."""
        if self._parent is None:
            return
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            with _locked(self._parent):
                runs = sorted(_runs(self._parent), key=lambda path: path.lstat().st_mtime_ns, reverse=True)
                failed = [path for path in runs if _has_bundle(path)]
                ordinary = [path for path in runs if path not in failed]
                old = [*ordinary[keep:], *failed[keep:]][:_MAX_REMOVED_RUNS]
                dead = [path for path in old if _lock_dead(path, stack)]
            for path in dead:
                shutil.rmtree(path, ignore_errors=True)


def _find_parent(base: Path) -> tuple[Path, str]:
    """Return a directory private to this user, and why it is not the default one (empty if it is)."""
    usual = usual_log_parent(base)
    with contextlib.suppress(FileExistsError):
        usual.mkdir(mode=0o700)
    if not (refused := _refusal(usual)):
        return usual, ""
    alternatives = sorted(path for path in base.glob(f"{usual.name}-*") if not _refusal(path))
    return alternatives[0] if alternatives else Path(tempfile.mkdtemp(prefix=f"{usual.name}-", dir=base)), refused


def _refusal(path: Path) -> str:
    """Return why other users could read or redirect logs in a directory; empty if the directory is safe."""
    try:
        descriptor = os.open(path, _DIRECTORY)
    except OSError:
        kind = "a link" if path.is_symlink() else "no directory that this user can open"
        return f"{path} is {kind}"
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            return f"{path} belongs to user {status.st_uid}"
        if status.st_mode & 0o022:
            mode = stat.S_IMODE(status.st_mode)
            return f"{path} can be written to by others (mode {mode:04o}; `chmod 700` if all in it is yours)"
        os.fchmod(descriptor, 0o700)
        return ""
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, _DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _runs(parent: Path) -> Iterator[Path]:
    for entry in os.scandir(parent):
        if _RUN.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            yield Path(entry.path)


def _has_bundle(path: Path) -> bool:
    return (path / bundle_name(path.name)).exists()


def _lock_dead(path: Path, stack: contextlib.ExitStack) -> bool:
    """True if a run has ended; its directory then stays locked until the stack is closed."""
    descriptor = os.open(path, _DIRECTORY)
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _point(link: Path, target: str) -> None:
    fresh = link.with_name(f".{link.name}-{os.getpid()}")
    with contextlib.suppress(OSError):  # the user may have a file with that name
        fresh.symlink_to(target)
        try:
            fresh.replace(link)
        except OSError:
            fresh.unlink()
