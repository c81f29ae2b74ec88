"""Functions that take snapshots of runs: they read local files directly, and other machines' through daemons.

Taking a snapshot waits for no process of the run, and for its daemons no longer than the timeout; the snapshot names
the parts that are missing. If no daemon runs, it contains this machine's files only.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rlinf_async._core import operations
from rlinf_async._recorder.run_files import MAX_PIECE_BYTES, RunFile, RunFiles
from rlinf_async.errors import ClosedError, DeadlineExceeded, LaunchError

from .attachment import Attachment, attached
from .run_places import LocalRun, listens, other_hosts
from .run_snapshot import RunSnapshot
from .run_status import status_data
from .run_view import RunView, look
from .stuck_verdict import look_twice, verdict_data

LOG_BYTES: Final = 256 << 10  # only the end of each log is copied

VERDICT: Final = "its verdict"  # key of the verdict in ``missing``
_NO_TIME: Final = "there was no time to read it"


async def take_snapshot(
    run: LocalRun,
    timeout: float,
    *,
    wants_verdict: bool = True,
    wants_devices: bool = True,
    read_by: float = math.inf,
) -> RunSnapshot:
    """Return a snapshot; daemons may take ``timeout`` seconds, local files until ``read_by`` (``time.monotonic``).

    A verdict takes two reports, half a second apart; ``wants_devices`` queries the GPU driver for usage.
    """
    snapshot, logs = RunSnapshot(run.run, time.time()), run.logs
    if run.is_alive:
        try:
            async with attached(run, timeout) as attachment, asyncio.TaskGroup() as tasks:
                snapshot.is_alive, logs = True, logs or Path(attachment.welcome["log_dir"])
                tasks.create_task(_ask_status(attachment, snapshot, wants_devices))
                if wants_verdict:
                    tasks.create_task(_ask_verdict(attachment, snapshot))
                tasks.create_task(fetch_files(attachment, snapshot))
        except LaunchError as error:
            snapshot.missing["its daemons"] = str(error)
            # A daemon that listens without answering is stopped or starting, so its run has not ended.
            snapshot.is_alive = None if any(map(listens, run.sockets.values())) else False
    elif await asyncio.to_thread(other_hosts, run):
        snapshot.is_alive = None  # whether daemons on other machines are alive is unknown here
    if logs is None:
        snapshot.missing["its logs"] = "it is not known where they are"
    else:
        # Read files last, so that they cover the events of the other parts; in a thread, so that signals are handled
        # in the meantime.
        await asyncio.to_thread(_read, RunFiles(logs), snapshot, read_by)
        snapshot.note_absent_files(logs)
    snapshot.taken_at = time.time()
    for node, where in snapshot.lost_nodes().items():
        snapshot.missing[node] = f"{snapshot.missing[node]}; {where}" if node in snapshot.missing else where
    return snapshot


# -- answers ----------------------------------------------------------------------------------------------------


async def _ask_status(attachment: Attachment, snapshot: RunSnapshot, wants_devices: bool) -> None:
    try:
        view = await look(attachment, parts=["queues"], details=True, devices=wants_devices)
    except ClosedError as error:
        snapshot.missing["its status"] = str(error)
        return
    snapshot.status = status_data(attachment, view)
    _note_missing(attachment, view, snapshot)


async def _ask_verdict(attachment: Attachment, snapshot: RunSnapshot) -> None:
    try:
        verdict, view = await look_twice(attachment)
    except ClosedError as error:
        snapshot.missing[VERDICT] = str(error)
        return
    if view.report.processes:
        snapshot.verdict = verdict_data(verdict, view)
    else:
        snapshot.missing[VERDICT] = "no daemon has answered twice in time"
    _note_missing(attachment, view, snapshot)


def _note_missing(attachment: Attachment, view: RunView, snapshot: RunSnapshot) -> None:
    for node, reason in view.missing.items():
        snapshot.missing.setdefault(f"node {node} ({attachment.name_of(node)})", reason)


# -- files ------------------------------------------------------------------------------------------------------


async def fetch_files(attachment: Attachment, snapshot: RunSnapshot) -> None:
    """Fetch files of nodes on other machines; if several nodes have the same path, the last writer wins."""
    local_nodes = attachment.run.sockets
    answers, _ = await attachment.ask_nodes(lambda node: None if node in local_nodes else operations.ListRunFiles())
    latest: dict[str, tuple[float, int, RunFile]] = {}
    for node, listing in answers.items():
        for file in (RunFile(*each) for each in listing):
            latest[file.path] = max(latest.get(file.path, (0.0, -1, file)), (file.changed, node, file))
    async with asyncio.TaskGroup() as tasks:
        for node in answers:
            files = [file for _, owner, file in latest.values() if owner == node]
            tasks.create_task(_fetch_of(attachment, node, files, snapshot))


async def _fetch_of(attachment: Attachment, node: int, files: list[RunFile], snapshot: RunSnapshot) -> None:
    for number, file in enumerate(files):
        try:
            pieces = [
                await attachment.request(operations.ReadRunFile(file.path, offset, nbytes), node)
                for offset, nbytes in _pieces(file)
            ]
        except LaunchError as error:  # only this file failed: someone removed it, or its disk is broken
            snapshot.missing[file.path] = str(error)
        except (DeadlineExceeded, ClosedError) as error:
            snapshot.missing |= {each.path: str(error) for each in files[number:]}
            return
        else:
            snapshot.add(file.path, _whole(file, pieces))


def _read(files: RunFiles, snapshot: RunSnapshot, read_by: float) -> None:
    for file in files.listing():
        if time.monotonic() > read_by:
            snapshot.missing[file.path] = _NO_TIME
            continue
        try:
            pieces = [files.read(file.path, offset, nbytes) for offset, nbytes in _pieces(file)]
        except (OSError, ValueError) as error:
            snapshot.missing[file.path] = str(error)
        else:
            snapshot.add(file.path, _whole(file, pieces))


def _pieces(file: RunFile) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each piece of a file; for a log, of its end only."""
    begin = max(0, file.nbytes - LOG_BYTES) if file.is_log else 0
    for offset in range(begin, file.nbytes, MAX_PIECE_BYTES):
        yield offset, min(MAX_PIECE_BYTES, file.nbytes - offset)


def _whole(file: RunFile, pieces: list[bytes]) -> bytes:
    data = b"".join(pieces)
    if file.is_log and file.nbytes > LOG_BYTES and b"\n" in data:
        return data.partition(b"\n")[2]  # the first line may be truncated
    return data
