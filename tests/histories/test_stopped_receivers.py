"""A trainer's weights and three receivers on two nodes, while processes of the run are stopped for moments.

Sends meet their deadlines in every state of whoever is stopped.  Whatever becomes of each, readers see whole versions
in order, and once nobody is stopped any more a send reaches everybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from typing import Any

import pytest
import torch

from rlinf_async import Cluster, DeadlineExceeded, NodePlacementStrategy, Worker
from rlinf_async.weights import WorkerWeightSyncScheme
from tests.histories.nemesis import children, nemesis

SENDS = 25
"""In a round, after which everybody closes and connects again."""

STAYS = 30
"""After so many looks, one that takes longer than receivers have."""

DEADLINE = 0.05
"""Seconds that they have in half of the sends."""


def model(size: int) -> torch.nn.Module:
    """Of about that many bytes, unevenly in ten tensors."""
    shares = [size // 8 // 20, *([size // 4 // 20] * 8), size // 4 // 2]
    return torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(max(1, n)), requires_grad=False) for n in shares])


class Trainer(Worker):
    async def begin(self, scheme: WorkerWeightSyncScheme, size: int) -> None:
        self._model = model(size)
        self._fill(1)  # the version that they start with
        self._scheme = scheme
        scheme.init_on_sender("policy", receivers="receivers", source_model=self._model)
        await scheme.connect(timeout=30)

    def _fill(self, value: float) -> None:
        for parameter in self._model.parameters():
            parameter.data.fill_(value)

    async def send(self, version: int, timeout: float, *, is_given_up: bool = False) -> bool:
        """Whether all have it; the weights are others as soon as it is packed, or given up."""
        sender = self._scheme.get_sender()
        self._fill(version)
        try:
            if is_given_up:
                async with asyncio.timeout(0.002):
                    await sender.send(version=version, timeout=timeout)
            else:
                await sender.send_async(version=version, timeout=timeout)
                self._fill(-1)
                await sender.wait_async()
        except (DeadlineExceeded, TimeoutError):
            return False
        finally:
            self._fill(-1)
        return True

    async def end(self) -> None:
        await self._scheme.close()


class Receiver(Worker):
    """A thread looks at every value, again and again, and now and then for long."""

    async def begin(self, scheme: WorkerWeightSyncScheme, size: int) -> None:
        self._model = model(size)
        self._scheme = scheme
        self._seen: list[int] = []
        self._faults: list[str] = []
        scheme.init_on_worker("policy", sender=("trainer", 0), model=self._model)
        await scheme.connect(timeout=30)
        scheme.get_receiver().serve()
        self._is_over = threading.Event()
        self._looker = threading.Thread(target=self._look)
        self._looker.start()

    def _look(self) -> None:
        while not self._is_over.wait(0.001):
            with self._scheme.get_receiver().reading(30) as version:
                values = self._values()
                if len(self._seen) % STAYS == 0:
                    time.sleep(DEADLINE * 4)  # versions come and are given up meanwhile
                    values |= self._values()
            if values != {float(version)}:
                self._faults.append(f"version {version} has {sorted(values)}")
            if self._seen and version < self._seen[-1]:
                self._faults.append(f"version {version} came after {self._seen[-1]}")
            self._seen.append(version)

    def _values(self) -> set[float]:
        return {bound.item() for tensor in self._model.parameters() for bound in tensor.aminmax()}

    async def end(self) -> tuple[list[str], int, int]:
        """What was wrong, how often it has looked, and the version that it has."""
        self._is_over.set()
        await asyncio.to_thread(self._looker.join)
        version = self._scheme.get_receiver().version
        await self._scheme.close()
        return self._faults, len(self._seen), version


async def judge(rounds: int, seed: int, apply: str, size: int) -> None:
    chance = random.Random(seed)
    before = children()
    async with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        trainer: Any = Trainer.create_group().launch(cluster, NodePlacementStrategy([0]), name="trainer")
        receivers: Any = Receiver.create_group().launch(cluster, NodePlacementStrategy([0, 1, 1]), name="receivers")
        await trainer
        await receivers
        for _ in range(rounds):
            async with asyncio.timeout(120), contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(nemesis(before, chance.random()))
                scheme = WorkerWeightSyncScheme(apply=apply)
                beginning = receivers.begin(scheme, size)
                await trainer.begin(scheme, size)
                await beginning
                reached = 0
                for version in range(2, SENDS + 2):
                    seconds = chance.choice([DEADLINE, 10.0])
                    (has_reached,) = await trainer.send(version, seconds, is_given_up=chance.random() < 0.1)
                    reached += has_reached
            async with asyncio.timeout(60):
                assert await trainer.send(SENDS + 2, 30.0) == [True]
                results = await receivers.end()
                await trainer.end()
            assert reached
            for faults, looks, version in results:
                assert (faults, version) == ([], SENDS + 2)
                assert looks > 1


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_versions_are_whole_and_in_order_and_the_last_one_reaches_everybody(apply: str) -> None:
    await judge(1, seed=1, apply=apply, size=4 << 20)


@pytest.mark.histories
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("size", [100_000, 32 << 20])
@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_that_holds_many_times(apply: str, size: int, seed: int) -> None:
    await judge(20, seed, apply, size)
