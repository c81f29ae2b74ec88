"""Measurements of data exchange between workers, and ``Exchange``, the interface that each framework implements.

As with ``works.py``, the works are the same for all, and the standard library is all that this file needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import works
from works import Samples


class Exchange:
    """Interface that each framework implements.  Workers count from 0; all instants are of ``time.perf_counter``."""

    async def start(self, workers: int) -> None:
        """Starts the framework and launches the workers."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Ends everything."""

    async def swap(self, size: int, count: int, way: str, read: bool) -> Samples:
        """Seconds that worker 0 needs to send a tensor of its own to worker 1 and to have one of worker 1's.

        Args:
            size: bytes of each of the two float32 tensors.
            way: ``"send"``, or another that only some frameworks have.
            read: both sum up the elements of what arrives.
        """
        raise NotImplementedError

    async def spread(self, size: int, count: int, receivers: int) -> tuple[Samples, Sequence[Samples]]:
        """A tensor of worker 0 to the workers 1, 2, …: when it began, each time, and when each of them had it."""
        raise NotImplementedError

    async def relay(
        self, count: int, size: int, pairs: int, in_flight: int, keys: int, way: str
    ) -> tuple[Samples, Samples]:
        """Items through one queue: when each of the producers began, and when each of the consumers had its share.

        Args:
            count: items of each producer.
            size: bytes of an item, a float32 tensor; 0 is the number 1.
            pairs: producers, the workers 0 … pairs - 1; as many consumers follow.
            in_flight: puts, and gets, that each worker has under way.
            keys: the items go round them.
            way: ``"async"`` or ``"def"``, where the framework has both.  Of ours, ``"loop"`` is ``async for``, and
                ``"experience"`` and ``"durable"`` are puts into an experience and takes of 64 samples.
        """
        raise NotImplementedError


class Exchanges:
    """The works, by the names that the benches use, in seconds or per second."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def start(self, workers: int) -> Samples:
        await self._exchange.start(workers)
        return []

    async def close(self) -> Samples:
        await self._exchange.stop()
        return []

    async def swap(self, size: int, count: int, way: str = "send") -> Samples:
        """Seconds of a round trip."""
        return await self._exchange.swap(size, count, way, False)

    async def bandwidth(self, size: int, count: int, way: str = "send", read: bool = False) -> Samples:
        """Bytes per second in one direction, of tensors that go both ways in turn."""
        return [2 * size / taken for taken in await self._exchange.swap(size, count, way, read)]

    async def spread(self, size: int, count: int, receivers: int) -> Samples:
        """Seconds until the last receiver has it."""
        began, had = await self._exchange.spread(size, count, receivers)
        return [max(each) - start for start, *each in zip(began, *had, strict=True)]

    async def spread_bandwidth(self, size: int, count: int, receivers: int) -> Samples:
        """Bytes per second to each of the receivers."""
        return [size / taken for taken in await self.spread(size, count, receivers)]

    async def relay(
        self, count: int, size: int = 0, pairs: int = 1, in_flight: int = 1, keys: int = 1, way: str = "async"
    ) -> Samples:
        """Items per second."""
        began, ended = await self._exchange.relay(count, size, pairs, in_flight, keys, way)
        return [count * pairs / (max(ended) - min(began))]

    async def relay_bandwidth(self, count: int, size: int, **arguments: Any) -> Samples:
        """Bytes per second."""
        return [size * rate for rate in await self.relay(count, size, **arguments)]


def run(exchange: Exchange) -> None:
    """The main of a framework's file."""
    asyncio.run(works.serve(Exchanges(exchange)))
