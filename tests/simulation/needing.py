"""``Needing``, the worker that waits for ranks and channels of a node that is lost; ``need``, the same of a driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import torch

from rlinf_async import Channel, WorkerGroup
from rlinf_async._worker import context
from rlinf_async._worker.device_lock import DeviceLock
from tests.simulation.families import CREW
from tests.simulation.standing import Standing

_FOR_EVER_S: Final = 1e6
_LARGE_BYTES: Final = 1_500_000
"""Size of a message that leaves once its receiver is there."""

HAS_IT: Final = "has it"


async def need(kind: str, members: Any, rank: int, channel: Channel) -> None:
    """Wait for a rank or a channel by what drivers and ranks both can do."""
    if kind == "call":
        await members[rank].stay_away()
    elif kind == "call of all":
        await members.stay_away()
    elif kind == "stream":
        async for _ in members[rank].drip():
            pass
    elif kind == "get":
        await channel.get()
    elif kind == "put":
        for number in range(3):
            await channel.put(number)


class Needing(Standing):
    """Waits without a deadline."""

    async def stay_away(self) -> None:
        await asyncio.sleep(_FOR_EVER_S)

    async def drip(self) -> AsyncIterator[int]:
        for number in range(1_000_000):
            yield number
            await asyncio.sleep(7.0)

    async def have_device(self, device: int) -> None:
        client = context.client
        assert client is not None
        await DeviceLock(client, self.name, [device]).acquire()
        await asyncio.sleep(_FOR_EVER_S)

    async def send_to(self, rank: int) -> None:
        await self.send("late", CREW, rank)

    async def need(self, kind: str, rank: int, channel: Channel, nonce: int) -> str:
        """Return how it ended."""
        if kind == "recv":
            await self.recv(CREW, rank)
        elif kind == "send":
            await self.send(bytes(_LARGE_BYTES), CREW, rank)
        elif kind == "broadcast":
            value = torch.zeros(_LARGE_BYTES, dtype=torch.uint8) if self._rank == 0 else None
            groups = [(CREW, list(range(self._world_size)))]
            await self.broadcast(value, groups, src=(CREW, 0 if nonce % 2 else rank), async_op=True)
        elif kind == "lock":
            client = context.client
            assert client is not None
            lock = DeviceLock(client, self.name, [rank])
            await lock.acquire()
            lock.release()
        else:
            if CREW not in self._groups:
                self._groups[CREW] = await WorkerGroup.from_group_name(type(self), CREW)
            await need(kind, self._groups[CREW], rank, channel)
        return HAS_IT

    def need_blocking(self, kind: str, rank: int) -> str:
        if kind == "blocking recv":
            self.recv(CREW, rank)
        else:
            self.send(bytes(_LARGE_BYTES), CREW, rank)
        return HAS_IT
