"""Acts of streams: read whole, left half way, dropped unread, by a driver's loop, its threads and other ranks."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation import crew
from tests.simulation.families import CREW
from tests.simulation.stage import Stage


class StreamActs(Stage):
    """Streams of one rank and of all."""

    async def do_s_read(
        self, reader: Any, rank: int | None, count: int, pad: int, pause: float, fails_at: int, how: str, most: int,
        eat: float,
    ) -> None:  # fmt: skip
        nonce = next(self.nonces)
        members = self.groups[CREW] if rank is None else self.groups[CREW][rank]
        facts = (nonce, count, pad, pause, fails_at)
        name = f"stream {nonce}"
        self.streams[nonce] = (range(len(self.program.placement[CREW])) if rank is None else [rank], count, fails_at)
        if reader == "driver":
            self.start(name, crew.read("driver", members, *facts, how, most, eat))
        elif reader == "thread":
            self.start(name, asyncio.to_thread(crew.read_blocking, f"driver's thread {nonce}", members, *facts))
        elif rank is not None and reader != (CREW, rank):
            self.script(name, reader, "read_peer", CREW, rank, [*facts, how, most, eat])
