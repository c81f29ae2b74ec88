"""Timers of a worker's methods."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from rlinf_async._worker.timers import timed


class Timed:
    def __init__(self) -> None:
        self.is_cleaned_up = False

    def worker_timer(self, tag: str, trace: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @timed(None)
    async def stream(self) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            self.is_cleaned_up = True


async def test_a_timed_stream_that_is_closed_has_cleaned_up_by_then() -> None:
    timed = Timed()
    async with contextlib.aclosing(timed.stream()) as stream:  # type: ignore[type-var]  # a generator
        assert await anext(stream) == 1
    assert timed.is_cleaned_up
