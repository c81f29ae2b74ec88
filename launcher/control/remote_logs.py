"""``RemoteLog``: a log on another machine, copied piece by piece into a local file while it is being read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlinf_async._core import operations
from rlinf_async._recorder.run_files import MAX_PIECE_BYTES, RunFile, is_of_a_run
from rlinf_async.errors import ClosedError, DeadlineExceeded, LaunchError

from .attachment import Attachment


@dataclass
class RemoteLog:
    """Copy of a log or of its last part; ``trouble`` says why reading has stopped."""

    attachment: Attachment
    node: int
    file: RunFile
    copy: Path
    trouble: str = ""
    _end: int = 0

    async def begin(self, tail: int | None) -> None:
        """Copy at least the last ``tail`` lines, or all if it is None."""
        if tail is None:
            await self._copy_all()
            return
        begin = self._end = self.file.nbytes
        pieces: list[bytes] = []
        lines = -1  # the newline of the last line does not count
        while begin and not self.trouble and lines < tail:
            end, begin = begin, max(0, begin - MAX_PIECE_BYTES)
            pieces.insert(0, await self._read(begin, end - begin))
            lines += pieces[0].count(b"\n")
        self.copy.write_bytes(b"".join(pieces))

    async def _copy_all(self) -> None:
        self._end = 0
        self.copy.write_bytes(b"")
        while not self.trouble and self._end < self.file.nbytes and await self._copy_piece():
            pass

    async def follow(self) -> None:
        """Copy the text written since the last call."""
        # A piece that is not full ends the copy: a rank that writes without a pause would never be shown.
        while len(await self._copy_piece()) + 1 >= MAX_PIECE_BYTES:
            pass

    async def _copy_piece(self) -> bytes:
        known = min(self._end, 1)  # read the last byte again: a log without it has been truncated
        piece = await self._read(self._end - known, MAX_PIECE_BYTES)
        if known and not piece and not self.trouble:
            self._end = 0
        piece = piece[known:]
        self._end += len(piece)
        with self.copy.open("ab") as copy:
            copy.write(piece)
        return piece

    async def _read(self, offset: int, nbytes: int) -> bytes:
        try:
            return await self.attachment.request(operations.ReadRunFile(self.file.path, offset, nbytes), self.node)
        except (ClosedError, DeadlineExceeded, LaunchError) as error:
            self.trouble = str(error)
            return b""


async def find_remote_logs(attachment: Attachment, folder: Path) -> tuple[list[RemoteLog], dict[int, str]]:
    """Return ranks' logs on other machines, to be copied into ``folder``, and why some nodes did not list theirs."""
    local_nodes = attachment.run.sockets
    answers, missing = await attachment.ask_nodes(
        lambda node: None if node in local_nodes else operations.ListRunFiles()
    )
    found = []
    for node, listing in answers.items():
        for file in (RunFile(*each) for each in listing):
            # ``is_of_a_run`` refuses paths that lead out of the folder.
            if "/" in file.path and file.is_log and is_of_a_run(file.path):
                copy = folder / str(node) / file.path
                copy.parent.mkdir(parents=True, exist_ok=True)
                found.append(RemoteLog(attachment, node, file, copy))
    return found, {node: reason for node, reason in missing.items() if node not in local_nodes}
