"""A cable between a node that dials and the one that accepts: a relay on the loopback that breaks as it is told."""

from __future__ import annotations

import asyncio
from typing import Any

_PIECE_BYTES = 1 << 16


class Cable:
    """Carries TCP connections to ``address``; use as ``async with``.

    Attributes:
        address: to dial instead.
        carried: connections that it has carried so far.
        seconds_per_byte: for which each direction is taken, by all connections together.
    """

    def __init__(self, address: str) -> None:
        self._far = address.rpartition(":")
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._intact = {"there": asyncio.Event(), "back": asyncio.Event()}
        self.mend()
        self.address = ""
        self.carried = 0
        self.seconds_per_byte = 0.0
        self._taken = {direction: asyncio.Lock() for direction in self._intact}

    async def __aenter__(self) -> Cable:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, *directions: str) -> None:
        """From now on nothing crosses: no data, no end of a connection; ``there`` or ``back`` alone."""
        for direction in directions or self._intact:
            self._intact[direction].clear()

    def mend(self) -> None:
        for intact in self._intact.values():
            intact.set()

    def reset(self) -> None:
        """Every connection breaks, as by a reset; new ones are carried."""
        for writer in self._writers:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [writer]
        self._writers.add(writer)
        try:
            await self._intact["there"].wait()
            far_reader, far_writer = await asyncio.open_connection(self._far[0], int(self._far[2]))
            ends.append(far_writer)
            self._writers.add(far_writer)
            self.carried += 1
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(reader, far_writer, "there"))
                tasks.create_task(self._pass(far_reader, writer, "back"))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            for end in ends:
                end.transport.abort()
                self._writers.discard(end)
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        while data := await reader.read(_PIECE_BYTES):
            await self._intact[direction].wait()
            async with self._taken[direction]:
                if self.seconds_per_byte:
                    await asyncio.sleep(len(data) * self.seconds_per_byte)
            writer.write(data)
            await writer.drain()
        await self._intact[direction].wait()
        raise ConnectionError("one end has closed")
