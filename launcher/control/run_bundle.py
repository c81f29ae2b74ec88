"""``rlinf-ctl bundle``: writes everything known about a run into one file, as the launcher does for a failed run."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from rlinf_async._recorder.run_files import bundle_name

from .bundle_file import write_bundle
from .run_places import LocalRun
from .run_snapshot import RunSnapshot
from .snapshot_taking import VERDICT, take_snapshot
from .text_output import TextOutput, size

_ANSWERS, _READ, _WRITTEN = 0.6, 0.75, 0.9
"""Fractions of ``keep_bundle``'s timeout within which daemons must answer, and files must be read and written."""


_UNASKED: Final = "the script had ended before the run could be asked"


async def show_bundle(run: LocalRun, output: TextOutput, path: Path | None, timeout: float) -> None:
    """Write a bundle, by default into the current directory; print its contents and missing parts.  Raises OSError."""
    path = path or Path(bundle_name(run.run))
    snapshot = await take_snapshot(run, timeout)
    write_bundle(snapshot, path)
    if output.as_json:
        output.json({"path": str(path.absolute()), "missing": snapshot.missing})
        return
    rings = sum(name.endswith(".ring") for name in snapshot.files)
    state = {True: "alive", False: "ended", None: "not known to have ended"}[snapshot.is_alive]
    output.line(f"{path}: run {run.run} ({state}), {rings} flight recorders, {size(path.stat().st_size)}")
    for name, reason in snapshot.missing.items():
        output.note(f"missing: {name}: {reason}")


async def keep_bundle(run: LocalRun, path: Path, timeout: float, *, wants_verdict: bool) -> RunSnapshot:
    """Write a bundle within ``timeout`` seconds, as complete as possible.  Raises OSError.

    ``wants_verdict`` is False if the script has ended, because its processes' waits no longer mean anything.
    """
    began = time.monotonic()
    snapshot = await take_snapshot(
        run,
        timeout * _ANSWERS,
        wants_verdict=wants_verdict,
        wants_devices=False,
        read_by=began + timeout * _READ,
    )
    if not run.is_alive:
        snapshot.is_alive = False  # the launcher has ended all nodes, on other machines too
    if not wants_verdict:
        snapshot.missing[VERDICT] = _UNASKED
    await asyncio.to_thread(write_bundle, snapshot, path, began + timeout * _WRITTEN)
    return snapshot
