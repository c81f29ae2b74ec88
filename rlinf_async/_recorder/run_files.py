"""``RunFiles``: lists and reads the rings, black boxes and logs in a log directory; follows no links out of it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

MAX_PIECE_BYTES: Final = 1 << 20  # limit of one read, below a frame's maximum of 16 MiB

_NAME: Final = re.compile(
    r"(?:daemon_\d+|template_\d+_\d+)\.log"
    r"|recorder/(?:[0-9a-f]+\.ring|node-\d+\.json|(?:deaths|groups)-\d+\.jsonl)"
    r"|(?!\.\.?/)[^/\0\ud800-\udfff]+/rank_\d+\.(?:out|err)"
)
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def temporary_folder() -> Path:
    """Return the folder for temporary files; ``/tmp`` if this user may not write into any."""
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        return Path("/tmp")


def usual_log_parent(base: Path) -> Path:
    return base / f"rlinf-logs-{os.getuid()}"


def bundle_name(run: str) -> str:
    """Return the file name of a run's bundle, which the launcher writes next to the logs."""
    return f"rlinf-{run}.zip"


class RunFile(NamedTuple):
    """A file of a run: path relative to the log directory, size, and modification time in epoch seconds."""

    path: str
    nbytes: int
    changed: float

    @property
    def is_log(self) -> bool:
        return is_log(self.path)


def is_of_a_run(path: str) -> bool:
    """True if the path may belong to a run's file; False for any path outside the log directory."""
    return _NAME.fullmatch(path) is not None


def is_log(path: str) -> bool:
    return path.endswith((".out", ".err", ".log"))


class RunFiles:
    """The files in one log directory, which the user may have chosen and which may hold other files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __repr__(self) -> str:
        return f"<RunFiles in {self.directory}>"

    def listing(self) -> list[RunFile]:
        """Return all files of a run; empty if the directory cannot be read."""
        return [each for name in ("", *_folders(self.directory)) for each in self._files_in(name)]

    def read(self, path: str, offset: int, nbytes: int) -> bytes:
        """Return part of a file, possibly shorter at its end.

        Raises:
            ValueError: the path is not a file of a run, or the range is invalid.
            OSError: the file cannot be read; links are not followed.
        """
        if not is_of_a_run(path):
            raise ValueError(f"{path!r} is no file of a run below {self.directory}")
        if offset < 0 or not 0 <= nbytes <= MAX_PIECE_BYTES:
            raise ValueError(f"{path}: a piece has up to {MAX_PIECE_BYTES} bytes, got {nbytes} from {offset}")
        folder, _, name = path.rpartition("/")
        # Open the folder first, so that a link that has just replaced it cannot lead elsewhere. The log directory
        # itself may be a link chosen by the user.
        directory = os.open(self.directory, _DIRECTORY)
        try:
            if folder:
                outer, directory = directory, -1
                try:
                    directory = os.open(folder, _DIRECTORY | os.O_NOFOLLOW, dir_fd=outer)
                finally:
                    os.close(outer)
            file = os.open(name, _FILE, dir_fd=directory)
        finally:
            if directory >= 0:
                os.close(directory)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(f"{self.directory / path} is no regular file")
            return os.pread(file, nbytes, offset)
        finally:
            os.close(file)

    def _files_in(self, folder: str) -> Iterator[RunFile]:
        for entry in _entries(self.directory / folder):
            path = f"{folder}/{entry.name}" if folder else entry.name
            with contextlib.suppress(OSError):  # old runs are removed while others start, also on other machines
                if is_of_a_run(path) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield RunFile(path, status.st_size, status.st_mtime)


def _folders(directory: Path) -> Iterator[str]:
    for entry in _entries(directory):
        with contextlib.suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                yield entry.name


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:  # the folder is missing, has been removed, or belongs to another user
        return []
