"""``Standing``, the worker that waits for what never comes, or for what comes late."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from rlinf_async import Channel, DeadlineExceeded, WorkerGroup
from rlinf_async._worker import context
from rlinf_async._worker.device_lock import DeviceLock
from rlinf_async.testing import sleep
from tests.simulation.families import CREW
from tests.simulation.subject import Subject


@contextlib.contextmanager
def given_up() -> Iterator[None]:
    """A wait that may end with its deadline, one's own or that of a rank it calls."""
    with contextlib.suppress(DeadlineExceeded):
        yield


class Standing(Subject):
    """Waits; ``seconds`` are each wait's deadline."""

    @property
    def _before(self) -> int:
        return (self._rank - 1) % self._world_size

    @property
    def _after(self) -> int:
        return (self._rank + 1) % self._world_size

    async def wait_in_circle(self, seconds: float) -> None:
        """Wait for the rank before this one, which waits too."""
        with given_up():
            await self.recv(CREW, self._before, timeout=seconds)

    def block_in_circle(self, seconds: float) -> None:
        with given_up():
            self.recv(CREW, self._before, timeout=seconds)

    def call_along(self, path: Sequence[int], seconds: float, pause: float) -> None:
        """Call the first rank of a path with the rest of it; the last one takes a while."""
        if not path:
            sleep(pause)
            return
        if CREW not in self._groups:
            self._groups[CREW] = WorkerGroup.from_group_name(type(self), CREW)
        with given_up():
            self._groups[CREW][path[0]].call_along(path[1:], seconds, pause).wait(seconds)

    async def take_and_pass(self, source: Channel, target: Channel, seconds: float, pause: float) -> None:
        with given_up():
            await target.put(await source.get(timeout=seconds))
            await asyncio.sleep(pause)

    async def fill(self, channel: Channel, times: int, pause: float) -> None:
        for number in range(times):
            await asyncio.sleep(pause)
            await channel.put(number)

    async def join_broadcast(self, source: int, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                groups = [(CREW, list(range(self._world_size)))]
                await self.broadcast(None, groups, src=(CREW, source), async_op=True)

    async def lock_crosswise(self, seconds: float) -> None:
        """Hold the device of this rank, and want that of the next one."""
        client = context.client
        assert client is not None
        mine, other = (DeviceLock(client, self.name, [device]) for device in (self._rank, self._after))
        async with mine:
            await asyncio.sleep(0.5)
            with given_up():
                await other.acquire(seconds)
                other.release()

    async def pass_on(self, seconds: float, limit: float | None) -> None:
        """Wait for the rank before this one, which sends after a while, and send; rank 0 begins."""
        if self._rank:
            await self.recv(CREW, self._before, timeout=limit)
        await asyncio.sleep(seconds)
        if self._rank + 1 < self._world_size:
            await self.send("on", CREW, self._after)

    def pass_on_blocking(self, seconds: float, limit: float | None) -> None:
        if self._rank:
            self.recv(CREW, self._before, timeout=limit)
        sleep(seconds)
        if self._rank + 1 < self._world_size:
            self.send("on", CREW, self._after)
