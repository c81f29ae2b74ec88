"""RLinf as a contestant of the data exchange benches: ``send``, ``recv``, ``broadcast`` and its channel."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import exchanges
from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, PackedPlacementStrategy, Worker
from talking import Talking
from works import Samples


class Bench(Talking, Worker):
    def __init__(self) -> None:
        super().__init__()


class RLinf(exchanges.Exchange):
    """RLinf's workers; with ``--gpu``, two of them share the first GPU."""

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._device = "cuda" if "--gpu" in sys.argv else "cpu"

    async def start(self, workers: int) -> None:
        cluster = Cluster(num_nodes=1)
        placement = NodePlacementStrategy([0] * workers) if self._device == "cpu" else PackedPlacementStrategy(0, 0)
        self._group = Bench.create_group().launch(cluster, placement, name="bench")

    async def swap(self, size: int, count: int, way: str, read: bool) -> Samples:
        return self._group.execute_on(0, 1).swap(size, count, way, read, self._device).wait()[0]

    async def spread(self, size: int, count: int, receivers: int) -> tuple[Samples, list[Samples]]:
        ranks = range(receivers + 1)
        began, *had = self._group.execute_on(*ranks).spread(size, count, receivers).wait()
        return began, had

    async def relay(
        self, count: int, size: int, pairs: int, in_flight: int, keys: int, way: str
    ) -> tuple[Samples, Samples]:
        if self._channel is None:
            self._channel = Channel.create("items")
        producing = self._group.execute_on(*range(pairs)).produce(self._channel, count, size, in_flight, keys)
        consumers = range(pairs, 2 * pairs)
        consuming = self._group.execute_on(*consumers).consume(self._channel, count, in_flight, keys)
        return producing.wait(), consuming.wait()


if __name__ == "__main__":
    exchanges.run(RLinf())
