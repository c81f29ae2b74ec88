"""``PageFeed``: takes snapshots of a live run for its page, while anyone watches and until the run has ended."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from .page_data import PageData, Snapshot
from .recorded_places import choose_recorded
from .recorded_run import RecordedRun
from .run_places import LocalRun, NoSuchRun
from .snapshot_taking import take_snapshot

INTERVAL_S: Final = 1.0
_REST: Final = 2
"""Pause after a snapshot, as a multiple of its duration, so that a large run is not read constantly."""

_VERDICT_INTERVAL_S: Final = 5.0


class PageFeed:
    """Source of a run's latest snapshot; takes one snapshot at a time, and none while no one watches."""

    def __init__(self, run: LocalRun, places: Sequence[Path], timeout: float) -> None:
        self.has_ended = False
        self._run = run
        self._places = places
        self._timeout = timeout
        self._data = PageData()
        self._latest: Snapshot | None = None
        self._before: RecordedRun | None = None
        self._judged_at = 0.0
        self._watchers = 0
        self._watched = asyncio.Event()
        self._changed = asyncio.Condition()

    def __repr__(self) -> str:
        state = "ended" if self.has_ended else f"{self._watchers} watchers"
        return f"<PageFeed of {self._run.run} [{state}]>"

    async def follow(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.has_ended:
            await self._watched.wait()
            began = time.monotonic()
            recorded = await self._look()
            latest = await asyncio.to_thread(self._data.snapshot, recorded)
            async with self._changed:
                self._latest, self._before = latest, recorded
                self.has_ended = not recorded.is_alive
                self._changed.notify_all()
            rested = asyncio.Event()
            timer = loop.call_later(max(INTERVAL_S, _REST * (time.monotonic() - began)), rested.set)
            try:
                await rested.wait()
            finally:
                timer.cancel()

    async def newer(self, known: Snapshot | None) -> Snapshot | None:
        """Wait for a snapshot other than ``known``; return None after the run's last snapshot."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._latest is not known or self.has_ended)
            return None if self._latest is known else self._latest

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        self._watchers += 1
        self._watched.set()
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._watched.clear()

    async def _look(self) -> RecordedRun:
        """Return the run's current state with the latest verdict, or its last state if its files were removed."""
        before = self._before or RecordedRun(self._run.run, time.time(), False, [])
        judges = time.monotonic() - self._judged_at >= _VERDICT_INTERVAL_S
        try:
            run = choose_recorded(self._run.run, self._places)
        except NoSuchRun:
            return dataclasses.replace(before, is_alive=False)
        taken = await take_snapshot(run, self._timeout, wants_verdict=judges, wants_devices=False)
        recorded = await asyncio.to_thread(taken.recorded)
        if before.rings and not recorded.rings:  # the files may have been removed before the daemon was found dead
            return dataclasses.replace(before, is_alive=run.is_alive)
        if recorded.verdict is not None:
            self._judged_at = time.monotonic()
        # A silent daemon has not ended, because its socket still accepts connections.
        return dataclasses.replace(recorded, is_alive=run.is_alive, verdict=recorded.verdict or before.verdict)
