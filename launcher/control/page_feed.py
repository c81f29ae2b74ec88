"""``PageFeed``: looks at a live run for its page, again and again while somebody watches, until the run has ended."""

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
"""A look that took long is followed by so many times as much rest: a run of many ranks is not read all the time."""

_VERDICT_INTERVAL_S: Final = 5.0


class PageFeed:
    """The latest look at a run.  There is one look at a time, and none while nobody watches.

    Attributes:
        has_ended: the run has; there will be no newer look.
    """

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
        """Look until the run has ended."""
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
        """A look that is not the one that is known, once there is one; None after the last one of a run."""
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
        """The run as it is now, with the latest verdict; of one that is gone with its files the last look at it."""
        before = self._before or RecordedRun(self._run.run, time.time(), False, [])
        judges = time.monotonic() - self._judged_at >= _VERDICT_INTERVAL_S
        try:
            run = choose_recorded(self._run.run, self._places)
        except NoSuchRun:
            return dataclasses.replace(before, is_alive=False)
        taken = await take_snapshot(run, self._timeout, wants_verdict=judges, wants_devices=False)
        recorded = await asyncio.to_thread(taken.recorded)
        if not run.is_alive and not recorded.rings:
            return dataclasses.replace(before, is_alive=False)
        if recorded.verdict is not None:
            self._judged_at = time.monotonic()
        # A daemon that does not answer at this moment has not ended: its socket says so.
        return dataclasses.replace(recorded, is_alive=run.is_alive, verdict=recorded.verdict or before.verdict)
