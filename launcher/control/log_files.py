"""``rlinf-ctl logs``: prints the last lines of ranks' logs, even of ended runs, and new lines as they are written."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from rlinf_async._recorder.recording import DIRECTORY
from rlinf_async._recorder.run_files import RunFiles

from .attachment import Attachment
from .remote_logs import RemoteLog, find_remote_logs
from .run_places import LocalRun, NoSuchRun, ended_text
from .run_snapshot import RunSnapshot
from .run_view import look, split_ranks
from .text_output import TextOutput

_STREAMS: Final = {".out": "stdout", ".err": "stderr"}
_RANK_FILE: Final = re.compile(r"rank_(\d+)(\.out|\.err)")
_IN_MODIFY: Final = 2
_BLOCK_BYTES: Final = 64 * 1024
_LOOK_AGAIN_S: Final = 1.0
"""Seconds between reads of files that other machines write, because the kernel does not report remote changes."""


@dataclass
class LogFile:
    """Output of one rank on one stream; ``read`` yields complete new lines, in pieces."""

    group: str
    rank: int
    stream: str
    path: Path
    place: str = ""  # the source of a copied log
    _position: int = 0
    _rest: list[bytes] = field(default_factory=list, repr=False)

    def read(self, tail: int | None = None, *, is_last: bool = False) -> Iterator[list[str]]:
        """Yield unread lines, in pieces, starting with the last ``tail``; ``is_last`` includes an unfinished line."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:  # it may be removed with the run
            size = os.fstat(file.fileno()).st_size
            if tail is not None:
                self._position = _beginning_of_tail(file.fileno(), size, tail)
            self._position = file.seek(min(self._position, size))  # the file may have been truncated
            # Read only up to the current end: a rank that writes without a pause would delay all other logs.
            while block := file.read(min(_BLOCK_BYTES, size - self._position)):
                self._position += len(block)
                first, *more = block.split(b"\n")
                self._rest.append(first)
                if more:
                    lines = [b"".join(self._rest), *more]
                    self._rest = [lines.pop()]
                    yield [line.decode(errors="replace") for line in lines]
        if is_last and any(self._rest):
            yield [b"".join(self._rest).decode(errors="replace")]
            self._rest = []


def _beginning_of_tail(fd: int, size: int, lines: int) -> int:
    if not lines:
        return size
    place, missing = size, lines + 1
    if size and os.pread(fd, 1, size - 1) != b"\n":
        missing -= 1  # the last line has no newline yet
    while place and missing:
        start = max(0, place - _BLOCK_BYTES)
        block = os.pread(fd, place - start, start)
        for index in reversed([found.start() for found in re.finditer(b"\n", block)]):
            missing -= 1
            if not missing:
                return start + index + 1
        place = start
    return place


def show_kept_logs(run: LocalRun, output: TextOutput, words: str | None, *, tail: int | None) -> None:
    """Print the local logs of ``GROUP[:RANKS]``, or of all groups, of a run that has ended.  Raises NoSuchRun."""
    if run.logs is None:
        raise NoSuchRun(ended_text(run))
    files = chosen_logs((), run.logs, (), words)
    _print(files, output, tail, follow=False)
    _note_silence(files, output)
    for node, reason in _lost_nodes(run).items():
        output.note(f"of {node} there are no logs here: {reason}")


def _lost_nodes(run: LocalRun) -> dict[str, str]:
    """Return a map from each node on another machine to the location of its logs."""
    assert run.logs is not None
    files, facts = RunFiles(run.logs), RunSnapshot(run.run, run.since)
    for file in files.listing():
        if file.path.startswith("recorder/node-"):
            with contextlib.suppress(OSError):  # the file may just have been removed
                facts.add(file.path, files.read(file.path, 0, file.nbytes))
    return facts.lost_nodes()


async def show_logs(
    attachment: Attachment, output: TextOutput, words: str | None, *, tail: int | None, follow: bool
) -> None:
    """Print the logs of ``GROUP[:RANKS]``, or of all groups, including those on other machines.  Raises NoSuchRun."""
    timeout = attachment.deadline - asyncio.get_running_loop().time()
    with tempfile.TemporaryDirectory(prefix="rlinf-") as copies:
        view, (remote, missing) = await asyncio.gather(
            look(attachment, details=True), find_remote_logs(attachment, Path(copies))
        )
        for node, reason in missing.items():
            output.note(f"of {attachment.name_of(node)} there are no logs: {reason}")
        find = partial(chosen_logs, view.groups(), Path(attachment.welcome["log_dir"]), remote, words)
        files = find()
        if words is None:
            for group in sorted(view.groups().keys() - {file.group for file in files}):
                output.note(f"of group {group!r} there are no logs in {attachment.welcome['log_dir']}")
        remote = [log for log in remote if log.copy in {file.path for file in files}]
        # Not in a TaskGroup, whose ExceptionGroup would hide the OSError of a copy on a full disk.
        await asyncio.gather(*(log.begin(tail) for log in remote))
        _note_troubles(remote, output)
        _print(files, output, tail, follow=follow)
        if follow:
            await _follow(attachment, files, remote, output, timeout, find)
        else:
            _note_silence(files, output)


def _print(files: Sequence[LogFile], output: TextOutput, tail: int | None, *, follow: bool) -> None:
    for file in files:
        titled = len(files) > 1 and not output.as_json
        for lines in file.read(tail, is_last=not follow):
            if titled:
                output.line(f"==> {file.place or file.path} <==")
                titled = False
            _show(file, lines, output, named=False)


def _note_silence(files: Sequence[LogFile], output: TextOutput) -> None:
    if any(file.path.stat().st_size for file in files):
        return
    ranks: dict[str, list[str]] = {}
    for file in files:
        ranks.setdefault(file.group, []).append(str(file.rank))
    silent_ranks = ", ".join(f"{group}:{','.join(dict.fromkeys(numbers))}" for group, numbers in ranks.items())
    output.note(f"nothing has been written by {silent_ranks}" if files else "nothing has been written by any group")


def chosen_logs(
    groups: Collection[str], log_dir: Path, remote: Sequence[RemoteLog], words: str | None
) -> list[LogFile]:
    """Return the logs of chosen ranks, including dead ones, preferring a local file to a copy.  Raises NoSuchRun."""
    folders = {entry.name: entry for entry in log_dir.iterdir() if entry.is_dir()} if log_dir.is_dir() else {}
    known = {*groups, *folders, *(log.file.path.partition("/")[0] for log in remote)}
    if words is None:
        # If names conflict, the live group wins.
        names = {group.replace("/", "_"): group for group in (*sorted(known), *groups)}
        found = [file for name, group in names.items() for file in _files_of(name, group, folders, remote)]
        if not found and not log_dir.is_dir():
            raise NoSuchRun(f"the logs are gone: {log_dir} is no folder")
        return found
    group, ranks = split_ranks(words, known)
    files = _files_of(group.replace("/", "_"), group, folders, remote)
    absent = set(ranks or ()) - {file.rank for file in files}
    if absent and files:
        raise NoSuchRun(f"there is no rank {min(absent)} of group {group!r}, and no log of it")
    if not files:
        _refuse_missing_folder(group, log_dir, is_known=group in known)
        known_groups = ", ".join(sorted({each for each in known if each != DIRECTORY})) or "none"
        hint = "; what a driver writes is where it was started" if group == "driver" else ""
        raise NoSuchRun(f"there is no group {group!r}, and no log of it in {log_dir}; there are: {known_groups}{hint}")
    return [file for file in files if ranks is None or file.rank in ranks]


def _refuse_missing_folder(group: str, log_dir: Path, *, is_known: bool) -> None:
    path = log_dir / group.replace("/", "_")
    if (place := next((each for each in (log_dir, path) if each.exists() and not each.is_dir()), None)) is not None:
        raise NoSuchRun(f"the logs of group {group!r} are gone: {place} is no folder")
    if is_known:
        raise NoSuchRun(f"group {group!r} has no log in {log_dir}")


def _files_of(name: str, group: str, folders: Mapping[str, Path], remote: Sequence[RemoteLog]) -> list[LogFile]:
    found = {(file.rank, file.stream): file for file in _remote_files(remote, name, group)}
    found |= {(file.rank, file.stream): file for file in (_files_in(folders[name], group) if name in folders else ())}
    return [found[key] for key in sorted(found, key=lambda key: (key[0], key[1] != "stdout"))]


def _files_in(folder: Path, group: str) -> Iterator[LogFile]:
    for path in folder.iterdir():
        if match := _RANK_FILE.fullmatch(path.name):
            yield LogFile(group, int(match[1]), _STREAMS[match[2]], path)


def _remote_files(remote: Sequence[RemoteLog], name: str, group: str) -> Iterator[LogFile]:
    for log in remote:
        folder, _, file = log.file.path.partition("/")
        if folder == name and (match := _RANK_FILE.fullmatch(file)):
            place = f"{log.attachment.name_of(log.node)}:{log.file.path}"
            yield LogFile(group, int(match[1]), _STREAMS[match[2]], log.copy, place)


def _note_troubles(remote: Sequence[RemoteLog], output: TextOutput) -> None:
    for log in remote:
        if log.trouble:
            output.note(f"{log.attachment.name_of(log.node)}:{log.file.path}: {log.trouble}")


def _show(file: LogFile, lines: Sequence[str], output: TextOutput, *, named: bool) -> None:
    prefix = f"[{file.group}:{file.rank}] " if named else ""
    for line in lines:
        if output.as_json:
            output.json({"group": file.group, "rank": file.rank, "stream": file.stream, "line": line})
        else:
            output.worker_line(prefix, line)


async def _follow(
    attachment: Attachment,
    files: list[LogFile],
    remote: Sequence[RemoteLog],
    output: TextOutput,
    timeout: float,
    find: Callable[[], list[LogFile]],
) -> None:
    """Print lines as they are written, until the run's local daemon has ended."""
    changed = asyncio.Event()
    changed.set()  # lines may have been written before the watch began
    watch = _watch_files([file.path for file in files])
    loop = asyncio.get_running_loop()

    def on_change() -> None:
        os.read(watch, _BLOCK_BYTES)
        changed.set()

    if watch >= 0:
        loop.add_reader(watch, on_change)
    attachment.lost.add_done_callback(lambda _: changed.set())
    try:
        while not attachment.lost.done():
            timer = loop.call_later(_LOOK_AGAIN_S, changed.set)
            try:
                await changed.wait()
            finally:
                timer.cancel()
            changed.clear()
            attachment.deadline = loop.time() + timeout
            reading = [log for log in remote if not log.trouble]
            await asyncio.gather(*(log.follow() for log in reading))
            if not attachment.lost.done():  # reading a remote log always fails after the run has ended
                _note_troubles(reading, output)
            known = {file.path for file in files}
            with contextlib.suppress(NoSuchRun):  # the folder may be removed with the run
                files += [file for file in find() if file.path not in known]  # of groups launched in the meantime
            for file in files:
                for lines in file.read():
                    _show(file, lines, output, named=len(files) > 1)
        for file in files:
            for lines in file.read(is_last=True):
                _show(file, lines, output, named=len(files) > 1)
    finally:
        if watch >= 0:
            loop.remove_reader(watch)
            os.close(watch)


def _watch_files(paths: Sequence[Path]) -> int:
    """Return an inotify descriptor that is readable after a write to one of these files; -1 if there are too many."""
    libc = ctypes.CDLL(None)
    watch: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)  # whatever fails here, periodic reads continue
    for path in paths:
        libc.inotify_add_watch(watch, os.fsencode(path), _IN_MODIFY)
    return watch
