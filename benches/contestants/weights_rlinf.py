"""RLinf as a contestant of the weights bench: its bucket syncer over a broadcast, as its own workers use it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import weighing
from rlinf.hybrid_engines.weight_syncer import BucketWeightSyncer
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker

BUCKET = 512 << 20
"""Bucket size in bytes, as in RLinf's own configurations."""


class Sender(Worker):
    def __init__(self) -> None:
        super().__init__()

    async def open(self, shape: str, size: int, receivers: int) -> None:
        self._model = weighing.model(shape, size)
        self._groups = [(self._group_name, 0), ("rollout", list(range(receivers)))]
        self._syncer = BucketWeightSyncer(BUCKET, None, "cpu")
        names = [name for name, _ in self._model.named_parameters()]
        await self._syncer.init_sender(self._model.state_dict(), names, self._send)

    async def _send(self, bucket: Any) -> None:
        work = self.broadcast(bucket, groups=self._groups, src=(self._group_name, 0), async_op=True)
        await work.async_wait()

    async def sync(self, version: int) -> tuple[float, float]:
        weighing.fill(self._model, version)
        return await self._sync(version)

    async def _sync(self, version: int) -> tuple[float, float]:
        began = time.perf_counter()
        await self._syncer.sync(self._model.state_dict(), self._send, version)
        staged = time.perf_counter() - began
        for rank in self._groups[1][1]:
            await self.recv("rollout", rank, async_op=True).async_wait()
        return staged, time.perf_counter() - began

    async def send_pattern(self) -> list[int]:
        sums = weighing.fill_with_pattern(self._model)
        await self._sync(1)
        weighing.fill(self._model, -1)
        return sums

    def shut(self) -> None:
        del self._model, self._syncer


class Receiver(Worker):
    def __init__(self) -> None:
        super().__init__()

    async def open(self, shape: str, size: int, receivers: int) -> None:
        self._model = weighing.model(shape, size)
        self._groups = [("trainer", 0), (self._group_name, list(range(receivers)))]
        self._syncer = BucketWeightSyncer(BUCKET, None, "cpu")
        await self._syncer.init_receiver(self._model.state_dict(), self._receive)

    async def _receive(self) -> Any:
        return await self.broadcast(None, groups=self._groups, src=("trainer", 0), async_op=True).async_wait()

    async def apply(self) -> None:
        """Receive one sync, and confirm it."""
        await self._syncer.apply(self._model, self._receive)
        await self.send(1, "trainer", 0, async_op=True).async_wait()

    def check(self, version: int) -> None:
        weighing.check(self._model, version)

    def sums(self) -> list[int]:
        return weighing.sums(self._model)

    def shut(self) -> None:
        del self._model, self._syncer


class RLinf(weighing.Weights):
    async def start(self, receivers: int) -> None:
        cluster = Cluster(num_nodes=1)
        one, all_of_them = NodePlacementStrategy([0]), NodePlacementStrategy([0] * receivers)
        self._trainer = Sender.create_group().launch(cluster, one, name="trainer")
        self._rollout = Receiver.create_group().launch(cluster, all_of_them, name="rollout")

    async def stop(self) -> None:
        pass

    async def open(self, shape: str, size: int, receivers: int, apply: str) -> None:
        self._ranks = range(receivers)
        self._receiving().open(shape, size, receivers).wait()
        self._trainer.open(shape, size, receivers).wait()

    def _receiving(self) -> Any:
        """Return the receivers as the target of one call."""
        return self._rollout.execute_on(*self._ranks)

    async def sync(self, version: int) -> Sequence[float]:
        receiving = self._receiving().apply()
        (taken,) = self._trainer.sync(version).wait()
        receiving.wait()
        return tuple(taken)

    async def check(self, version: int) -> None:
        self._receiving().check(version).wait()

    async def compare(self) -> tuple[list[int], Sequence[list[int]]]:
        receiving = self._receiving().apply()
        (sent,) = self._trainer.send_pattern().wait()
        receiving.wait()
        return sent, self._receiving().sums().wait()

    async def shut(self) -> None:
        self._receiving().shut().wait()
        self._trainer.shut().wait()


if __name__ == "__main__":
    weighing.run(RLinf())
