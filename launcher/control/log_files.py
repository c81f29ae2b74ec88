"""``rlinf-ctl logs``: the last lines of ranks' logs on this machine, and what is written there from then on."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rlinf_async._inspection.state.run_report import ProcessReport

from .attachment import Attachment
from .run_places import NoSuchRun
from .run_view import RunView, look, split_ranks
from .text_output import Output

_STREAMS: Final = {".out": "stdout", ".err": "stderr"}
_RANK_FILE: Final = re.compile(r"rank_(\d+)(\.out|\.err)")
_IN_MODIFY: Final = 2
_BLOCK_BYTES: Final = 64 * 1024
_LOOK_AGAIN_S: Final = 1.0
"""Between two looks at files whose changes the kernel does not tell: another machine writes them."""


@dataclass
class LogFile:
    """The output of one rank on one stream; ``read`` gives whole lines as they come."""

    group: str
    rank: int
    stream: str
    path: Path
    _position: int = 0
    _rest: bytes = field(default=b"", repr=False)

    def read(self, tail: int | None = None) -> list[str]:
        """Lines that were not read before; of these the last ``tail``."""
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if tail is not None:
                self._position = _beginning_of_tail(file.fileno(), size, tail)
            file.seek(min(self._position, size))  # it is shorter where somebody has emptied it
            data = file.read()
            self._position = file.tell()
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def rest(self) -> list[str]:
        """The last line, where it has no end yet."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace")] if rest else []


def _beginning_of_tail(fd: int, size: int, lines: int) -> int:
    """Place in a file at which its last so many lines begin."""
    if not lines:
        return size
    place, missing = size, lines + 1
    if size and os.pread(fd, 1, size - 1) != b"\n":
        missing -= 1  # the last line has no end yet
    while place and missing:
        start = max(0, place - _BLOCK_BYTES)
        block = os.pread(fd, place - start, start)
        for index in reversed([found.start() for found in re.finditer(b"\n", block)]):
            missing -= 1
            if not missing:
                return start + index + 1
        place = start
    return place


async def show_logs(attachment: Attachment, output: Output, words: str, *, tail: int | None, follow: bool) -> None:
    """The logs of ``GROUP[:RANKS]``; of ranks of other machines, where they are.

    Raises:
        NoSuchRun: there is no such group, or no such rank in it.
    """
    view = await look(attachment, details=True)
    log_dir = Path(attachment.welcome["log_dir"])
    files, elsewhere = chosen_logs(view, log_dir, words)
    for process in elsewhere:
        path = view.detail(process)["log"]
        output.note(f"{process.name} is on {process.node_name}: its logs are there, {path}.out and {path}.err")
    for file in files:
        lines = file.read(tail)
        if not follow:
            lines += file.rest()
        if lines and len(files) > 1 and not output.as_json:
            output.line(f"==> {file.path} <==")
        _show(file, lines, output, named=False)
    if files and not follow and not any(file.path.stat().st_size for file in files):
        output.note(f"nothing has been written to {', '.join(str(file.path) for file in files[:4])}")
    if follow and files:
        await _follow(attachment, files, output)


def chosen_logs(view: RunView, log_dir: Path, words: str) -> tuple[list[LogFile], list[ProcessReport]]:
    """The files of this machine, those of ranks that have ended among them, and the ranks that have none here.

    Raises:
        NoSuchRun: there is no such group, or no such rank in it.
    """
    folders = {entry.name: entry for entry in log_dir.iterdir() if entry.is_dir()} if log_dir.is_dir() else {}
    groups = view.groups()
    group, ranks = split_ranks(words, {*groups, *folders})
    folder = folders.get(group.replace("/", "_"))
    files = [file for file in (_files_in(folder, group) if folder else ()) if ranks is None or file.rank in ranks]
    here = {file.rank for file in files}
    living = [each for each in groups.get(group, ()) if ranks is None or each.rank in ranks]
    absent = set(ranks or ()) - here - {each.rank for each in living}
    if absent:
        raise NoSuchRun(f"there is no rank {min(absent)} of group {group!r}, and no log of it in {log_dir}")
    if not files and not living:
        there = ", ".join(sorted({*groups, *folders})) or "none"
        hint = "; what a driver writes is where it was started" if group == "driver" else ""
        raise NoSuchRun(f"there is no group {group!r}, and no log of it in {log_dir}; there are: {there}{hint}")
    return files, [each for each in living if each.rank not in here]


def _files_in(folder: Path, group: str) -> Iterator[LogFile]:
    found = [(match, path) for path in folder.iterdir() if (match := _RANK_FILE.fullmatch(path.name))]
    for match, path in sorted(found, key=lambda each: (int(each[0][1]), each[0][2] != ".out")):
        yield LogFile(group, int(match[1]), _STREAMS[match[2]], path)


def _show(file: LogFile, lines: Sequence[str], output: Output, *, named: bool) -> None:
    prefix = f"[{file.group}:{file.rank}] " if named else ""
    for line in lines:
        if output.as_json:
            output.json({"group": file.group, "rank": file.rank, "stream": file.stream, "line": line})
        else:
            output.worker_line(prefix, line)


async def _follow(attachment: Attachment, files: Sequence[LogFile], output: Output) -> None:
    """Shows lines as they are written, until the run's daemon on this machine has ended."""
    changed = asyncio.Event()
    changed.set()  # what was written before the files were watched
    watch = _watch_files([file.path for file in files])
    loop = asyncio.get_running_loop()

    def on_change() -> None:
        os.read(watch, _BLOCK_BYTES)
        changed.set()

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
            for file in files:
                _show(file, file.read(), output, named=len(files) > 1)
        for file in files:
            _show(file, [*file.read(), *file.rest()], output, named=len(files) > 1)
    finally:
        loop.remove_reader(watch)
        os.close(watch)


def _watch_files(paths: Sequence[Path]) -> int:
    """An inotify descriptor that is readable when one of these files has been written to."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if watch < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    for path in paths:
        libc.inotify_add_watch(watch, os.fsencode(path), _IN_MODIFY)  # without it there are the regular looks
    return watch
