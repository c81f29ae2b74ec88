"""Measurements of data exchange between workers, and ``Exchange``, the interface that each framework implements.

As in ``works.py``, the measurements are the same for all frameworks, and this file needs only the standard library.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import works
from works import Samples


class Exchange:
    """Interface that each framework implements. Workers are numbered from 0; times are from ``time.perf_counter``."""

    async def start(self, workers: int) -> None:
        """Start the framework and launch the workers."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop everything."""

    async def swap(self, size: int, count: int, way: str, read: bool) -> Samples:
        """Return the seconds in which worker 0 sends a tensor to worker 1 and receives one from it.

        Args:
            size: bytes of each of the two float32 tensors.
            way: ``"send"``, or another method that only some frameworks have.
            read: True if both workers sum up the elements of the tensors that arrive.
        """
        raise NotImplementedError

    async def spread(self, size: int, count: int, receivers: int) -> tuple[Samples, Sequence[Samples]]:
        """Send a tensor from worker 0 to workers 1, 2, …; return each start, and the times at which each had it."""
        raise NotImplementedError

    async def relay(
        self, count: int, size: int, pairs: int, in_flight: int, keys: int, way: str
    ) -> tuple[Samples, Samples]:
        """Pass items through one queue; return the start of each producer, and the end of each consumer.

        Args:
            count: items per producer.
            size: bytes of an item, a float32 tensor; 0 for the number 1.
            pairs: number of producers, workers 0 … pairs - 1; as many consumers follow.
            in_flight: pending puts or gets per worker.
            keys: number of keys that the items cycle through.
            way: ``"async"`` or ``"def"``, if the framework has both. Ours also has ``"loop"`` for ``async for``, and
                ``"experience"`` and ``"durable"`` for puts into an experience and takes of 64 samples.
        """
        raise NotImplementedError


class Exchanges:
    """Measurements by the names that the benches use, in seconds or per second."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def start(self, workers: int) -> Samples:
        await self._exchange.start(workers)
        return []

    async def close(self) -> Samples:
        await self._exchange.stop()
        return []

    async def swap(self, size: int, count: int, way: str = "send") -> Samples:
        """Return the seconds of a round trip."""
        return await self._exchange.swap(size, count, way, False)

    async def bandwidth(self, size: int, count: int, way: str = "send", read: bool = False) -> Samples:
        """Return the bytes per second in one direction, of tensors that go both ways in turn."""
        return [2 * size / taken for taken in await self._exchange.swap(size, count, way, read)]

    async def spread(self, size: int, count: int, receivers: int) -> Samples:
        """Return the seconds until the last receiver has the tensor."""
        began, had = await self._exchange.spread(size, count, receivers)
        return [max(each) - start for start, *each in zip(began, *had, strict=True)]

    async def spread_bandwidth(self, size: int, count: int, receivers: int) -> Samples:
        """Return the bytes per second to each receiver."""
        return [size / taken for taken in await self.spread(size, count, receivers)]

    async def relay(
        self, count: int, size: int = 0, pairs: int = 1, in_flight: int = 1, keys: int = 1, way: str = "async"
    ) -> Samples:
        """Return the items per second."""
        began, ended = await self._exchange.relay(count, size, pairs, in_flight, keys, way)
        return [count * pairs / (max(ended) - min(began))]

    async def relay_bandwidth(self, count: int, size: int, **arguments: Any) -> Samples:
        """Return the bytes per second."""
        return [size * rate for rate in await self.relay(count, size, **arguments)]


def run(exchange: Exchange) -> None:
    """Run a framework's contestant script."""
    asyncio.run(works.serve(Exchanges(exchange)))
