"""Ray as a contestant of the weights bench: weights through the object store."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import ray
import weighing


class Actor:
    """Trainer or receiver; weights travel as numpy arrays, because Ray would copy tensors twice."""

    def open(self, shape: str, size: int, apply: str, receivers: Sequence[Any] = ()) -> None:
        self._model = weighing.model(shape, size)
        self._maps = apply == "map"
        self._receivers = receivers

    def sync(self, version: int) -> tuple[float, float]:
        weighing.fill(self._model, version)
        return self._send()

    def send_pattern(self) -> list[int]:
        sums = weighing.fill_with_pattern(self._model)
        self._send()
        weighing.fill(self._model, -1)
        return sums

    def _send(self) -> tuple[float, float]:
        began = time.perf_counter()
        shared = ray.put({name: parameter.numpy() for name, parameter in self._model.named_parameters()})
        staged = time.perf_counter() - began
        ray.get([receiver.apply.remote([shared]) for receiver in self._receivers])
        return staged, time.perf_counter() - began

    def apply(self, shared: list[Any]) -> None:
        import torch

        weights = ray.get(shared[0])
        for name, parameter in self._model.named_parameters():
            if self._maps:
                parameter.data = torch.from_numpy(weights[name])
            else:
                parameter.copy_(torch.from_numpy(weights[name]))

    def check(self, version: int) -> None:
        weighing.check(self._model, version)

    def sums(self) -> list[int]:
        return weighing.sums(self._model)

    def shut(self) -> None:
        del self._model, self._receivers


class Ray(weighing.Weights):
    async def start(self, receivers: int) -> None:
        ray.init(
            num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=5 << 30
        )
        kind = ray.remote(num_cpus=0)(Actor)
        self._trainer, *self._all = [kind.remote() for _ in range(1 + receivers)]

    async def stop(self) -> None:
        ray.shutdown()

    async def open(self, shape: str, size: int, receivers: int, apply: str) -> None:
        self._receiving = self._all[:receivers]
        ray.get([receiver.open.remote(shape, size, apply) for receiver in self._receiving])
        ray.get(self._trainer.open.remote(shape, size, apply, self._receiving))

    async def sync(self, version: int) -> Sequence[float]:
        taken: Sequence[float] = ray.get(self._trainer.sync.remote(version))
        return taken

    async def check(self, version: int) -> None:
        ray.get([receiver.check.remote(version) for receiver in self._receiving])

    async def compare(self) -> tuple[list[int], Sequence[list[int]]]:
        sent = ray.get(self._trainer.send_pattern.remote())
        return sent, ray.get([receiver.sums.remote() for receiver in self._receiving])

    async def shut(self) -> None:
        ray.get([actor.shut.remote() for actor in (self._trainer, *self._receiving)])


if __name__ == "__main__":
    weighing.run(Ray())
