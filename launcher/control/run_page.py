"""``rlinf-ctl page``: shows a run or a bundle as a page, which it serves or writes to a file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from .bundle_file import BadBundle, read_bundle
from .fresh_file import fresh_file
from .page_data import PageData
from .page_document import PageDocument, document
from .page_feed import PageFeed
from .page_server import PageServer
from .recorded_places import choose_recorded
from .recorded_run import RecordedRun
from .run_places import NoSuchRun
from .snapshot_taking import take_snapshot
from .text_output import TextOutput


async def show_page(
    wanted: str | None, places: Sequence[Path], output: TextOutput, path: Path | None, port: int, timeout: float
) -> None:
    """Write the page to ``path`` or, if that is None, serve it until interrupted; ``port`` 0 chooses any free port.

    ``wanted`` names a run as for ``choose_recorded``, or a bundle by its path.  Raises NoSuchRun, BadBundle or OSError.
    """
    if wanted is not None and wanted.endswith(".zip"):
        recorded = _recorded_in(wanted)
        page = _page_of_bundle(wanted, recorded)
    else:
        run = choose_recorded(wanted, places, "rlinf-ctl page RUN")
        if run.is_alive and path is None:
            page = document(f"rlinf run {run.run}", None)
            await _serve(page, PageFeed(run, places, timeout), output, port)
            return
        recorded = (await take_snapshot(run, timeout)).recorded()
        page = document_of(recorded)
    for name, reason in recorded.missing.items():
        output.note(f"missing: {name}: {reason}")
    if path is None:
        await _serve(page, None, output, port)
        return
    with fresh_file(path) as file:
        file.write(page.html.encode())
    _tell(output, str(path), {"path": os.fspath(path)})


def document_of(recorded: RecordedRun) -> PageDocument:
    return document(f"rlinf run {recorded.run}", PageData().snapshot(recorded).message())


def _recorded_in(path: str) -> RecordedRun:
    try:
        return read_bundle(Path(path)).recorded()
    except FileNotFoundError:
        fix = "`rlinf-ctl bundle RUN` writes one, rlinf-RUN.zip"
        raise NoSuchRun(f"there is no bundle {path}\n  fix: {fix}") from None


def _page_of_bundle(path: str, recorded: RecordedRun) -> PageDocument:
    try:
        return document_of(recorded)
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:  # malformed
        raise BadBundle(f"{path} is no bundle of a run: {type(error).__name__}: {error}") from error


async def _serve(page: PageDocument, feed: PageFeed | None, output: TextOutput, port: int) -> None:
    server = PageServer(page, feed)
    async with server.serving(port) as address:
        _tell(output, f"{address}  (Ctrl-C ends it)", {"address": address})
        if feed is not None:
            await feed.follow()
            output.note("no daemon of the run is here any more: the page keeps its last state")
        await asyncio.Event().wait()


def _tell(output: TextOutput, line: str, data: dict[str, str]) -> None:
    if output.as_json:
        output.json(data)
    else:
        output.line(line)
