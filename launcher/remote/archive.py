"""``Archive``: a compressed tar, in memory, of the folder that ``--sync`` ships: git's files, or all except caches."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlinf_async.errors import ConfigError

LARGE_BYTES: Final = 64 << 20  # above this size the launcher warns that the archive delays the start

_SKIPPED_FOLDERS: Final = frozenset({".git", "__pycache__", ".venv", "node_modules"})
_GIT_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True)
class Archive:
    """The packed folder.

    Attributes:
        data: a compressed tar file, with names relative to the folder.
        files: number of files in the archive.
        largest: the largest files as ``(bytes, name)``, largest first.
        left_out: members that cannot be shipped: sockets, devices, and links that lead out of the folder.
        unread: checkouts that git could not read, with git's error; the archive contains all their files.
    """

    data: bytes
    files: int
    largest: tuple[tuple[int, str], ...] = ()
    left_out: tuple[str, ...] = ()
    unread: tuple[tuple[Path, str], ...] = ()

    @property
    def warning(self) -> str | None:
        """Warning for the user, if any."""
        words = [f"--sync ships all files of {each}, whatever .gitignore says: {why}" for each, why in self.unread]
        if len(self.data) > LARGE_BYTES:
            big = ", ".join(f"{name} ({size >> 20} MiB)" for size, name in self.largest[:3])
            words.append(
                f"--sync ships {len(self.data) >> 20} MiB to every host; the largest files are {big}: "
                ".gitignore keeps out what is not needed there"
            )
        if self.left_out:
            words.append(f"--sync leaves out {', '.join(self.left_out[:5])}: no plain files inside the folder")
        return "\n".join(words) or None


def pack(folder: Path) -> Archive:
    """Pack the files that git tracks or would add, or all except caches if git is unavailable.  Raises ConfigError."""
    sink = io.BytesIO()
    sizes: list[tuple[int, str]] = []
    left_out: list[str] = []
    unread: list[tuple[Path, str]] = []
    name = ""
    try:
        # Use level 1: code is small, and stronger compression would take longer than it saves on the network.
        with tarfile.open(fileobj=sink, mode="w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as tar:
            for name in _names(folder, unread):
                member: Any = tar.gettarinfo(folder / name, name)
                if member is None:  # tarfile returns None for a socket, which typeshed does not declare
                    left_out.append(name)
                elif member.isfile() or member.islnk():
                    _add_file(tar, member, folder / name)
                    sizes.append((member.size, name))
                elif member.isdir() or (member.issym() and _stays_inside(name, member.linkname)):
                    tar.addfile(member)
                else:
                    left_out.append(name)
            if _is_our_checkout(folder):  # nothing is installed there, so the folder needs the launcher's import name
                link = tarfile.TarInfo("rlinf_launcher")
                link.type, link.linkname = tarfile.SYMTYPE, "launcher"
                tar.addfile(link)
    except OSError as error:
        raise ConfigError(
            f"--sync {folder}: {error.filename or folder / name}: {error.strerror or error}\n"
            "  fix: make it readable, or name it in .gitignore"
        ) from error
    largest = tuple(sorted(sizes, reverse=True)[:3])
    return Archive(sink.getvalue(), len(sizes), largest, tuple(left_out), tuple(unread))


def _is_our_checkout(folder: Path) -> bool:
    return (folder / "rlinf_async/__init__.py").exists() and (folder / "launcher/__init__.py").exists()


def _add_file(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    member.type, member.linkname = tarfile.REGTYPE, ""
    with path.open("rb") as file:
        member.size = os.fstat(file.fileno()).st_size
        tar.addfile(member, file)


def _stays_inside(name: str, target: str) -> bool:
    path = os.path.normpath(Path(name).parent / target)
    return not Path(target).is_absolute() and path.split("/")[0] != os.pardir


def _names(folder: Path, unread: list[tuple[Path, str]]) -> Iterator[str]:
    """Yield the relative names of files to ship, folders before their contents."""
    tracked = _git_names(folder, unread)
    if tracked is None:
        yield from _walk(folder)
        return
    for name in tracked:
        if _SKIPPED_FOLDERS.isdisjoint(Path(name).parts) and not name.endswith(".pyc"):
            path = folder / name
            if path.is_dir() and not path.is_symlink():  # a submodule, or a nested checkout
                yield from (f"{name.rstrip('/')}/{inner}" for inner in _names(path, unread))
            elif path.is_symlink() or path.exists():  # git still lists deleted files
                yield name


def _git_names(folder: Path, unread: list[tuple[Path, str]]) -> list[str] | None:
    """Return the files that git lists; None if there is no checkout or git, git fails, or git ignores every file."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_TIMEOUT_S, check=False)
    except OSError:
        return None
    except subprocess.TimeoutExpired as error:
        unread.append((folder, str(error)))
        return None
    if done.returncode:
        unread.append((folder, done.stderr.decode(errors="replace").strip()))
        return None
    return sorted({os.fsdecode(name) for name in done.stdout.split(b"\0") if name}) or None


def _walk(folder: Path) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise error

    for base, folders, files in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        inner = Path(base).relative_to(folder)
        yield from (str(inner / name) for name in [*folders, *sorted(files)] if not name.endswith(".pyc"))
