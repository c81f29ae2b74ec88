"""TorchRL as a contestant of the weights bench: a mapped buffer in shared memory, and a queue of tensors."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
import weighing
from tensordict import TensorDict
from torch import multiprocessing
from torchrl.weight_update import MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme


def receive(pipe: Any, scheme: Any, rank: int, shape: str, size: int) -> None:
    """Run a receiver's process; the scheme's own thread applies incoming weights."""
    multiprocessing.set_sharing_strategy("file_system")
    torch.set_num_threads(1)  # as TorchRL's collectors do
    model = weighing.model(shape, size)
    scheme.init_on_receiver(model_id="policy", model=model, worker_idx=rank)
    scheme.connect(worker_idx=rank)
    pipe.send(None)
    while (asked := pipe.recv()) is not None:
        try:
            pipe.send(weighing.sums(model) if asked == "sums" else weighing.check(model, asked))
        except ValueError as error:
            pipe.send(error)
    scheme.shutdown()


class TorchRL(weighing.Weights):
    """TorchRL's weight synchronisation; this process is the trainer."""

    async def start(self, receivers: int) -> None:
        multiprocessing.set_sharing_strategy("file_system")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torchrl.weight_update"])
        self._receivers: list[tuple[Any, Any]] = []

    async def stop(self) -> None:
        pass

    async def open(self, shape: str, size: int, receivers: int, apply: str) -> None:
        self._model = weighing.model(shape, size)
        weighing.fill(self._model, 0)
        self._maps = apply == "map"
        weights = TensorDict.from_module(self._model).data.clone()
        if self._maps:
            self._scheme = SharedMemWeightSyncScheme()
            shared = weights.share_memory_()
            self._scheme.init_on_sender(params_map=dict.fromkeys(range(receivers), shared), ctx=self._context)
        else:
            self._scheme = MultiProcessWeightSyncScheme()
            devices = [torch.device("cpu")] * receivers
            self._scheme.init_on_sender(model_id="policy", weights=weights, devices=devices, ctx=self._context)
        for rank in range(receivers):
            near, far = multiprocessing.Pipe()
            arguments = far, self._scheme, rank, shape, size
            process = self._context.Process(target=receive, args=arguments, daemon=True)
            process.start()
            self._receivers.append((near, process))
        self._scheme.connect()
        self._answers()

    def _answers(self) -> list[Any]:
        answers = [near.recv() for near, _ in self._receivers]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _ask(self, what: Any) -> list[Any]:
        for near, _ in self._receivers:
            near.send(what)
        return self._answers()

    async def sync(self, version: int) -> Sequence[float]:
        weighing.fill(self._model, version)
        return self._send()

    def _send(self) -> tuple[float, float]:
        """Send a version; ``send`` returns once all receivers have it.

        A queue passes tensors on by descriptor. Receivers of the trainer's own tensors would see its later changes, so
        they get clones.
        """
        began = time.perf_counter()
        weights = TensorDict.from_module(self._model).data
        self._scheme.send(weights=weights if self._maps else weights.clone())
        total = time.perf_counter() - began
        return total, total

    async def check(self, version: int) -> None:
        self._ask(version)

    async def compare(self) -> tuple[list[int], Sequence[list[int]]]:
        sent = weighing.fill_with_pattern(self._model)
        self._send()
        weighing.fill(self._model, -1)
        return sent, self._ask("sums")

    async def shut(self) -> None:
        for near, _ in self._receivers:
            near.send(None)
        self._scheme.shutdown()
        for near, process in self._receivers:
            process.join(20)
            near.close()
        self._receivers.clear()
        del self._model, self._scheme


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    weighing.run(TorchRL())
