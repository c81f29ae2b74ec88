"""Workers of the GPU proof."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any, Final

import torch

from rlinf_async import Cluster, Worker, follow, publish

DEVICE: Final = os.environ.get("RLINF_GPU_PROOF_DEVICE", "cuda")
"""Device of the workers: the CPU in the tests of the proof itself."""

SHAPES_OF_7B: Final = {
    "embed": (152_064, 3584),
    **{f"layers.{i}.{name}": shape for i in range(28) for name, shape in (
        ("q", (3584, 3584)), ("k", (512, 3584)), ("v", (512, 3584)), ("o", (3584, 3584)),
        ("gate", (18_944, 3584)), ("up", (18_944, 3584)), ("down", (3584, 18_944)),
        ("norm_1", (3584,)), ("norm_2", (3584,)), ("q_bias", (3584,)), ("k_bias", (512,)), ("v_bias", (512,)),
    )},
    "norm": (3584,),
    "head": (152_064, 3584),
}  # fmt: skip
"""Parameters of a Qwen2.5-7B: 7.6 billion, 15.2 GB in bfloat16."""


def one_node() -> Cluster:
    """Return a cluster of this machine; with a fake GPU where the workers are on the CPU."""
    return Cluster(num_nodes=1, fake_gpus=1 if DEVICE == "cpu" else None)


class Pinned(Worker):
    def look(self) -> dict[str, Any]:
        """Return what this worker sees of the GPUs."""
        uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
        names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LOCAL_RANK", "NCCL_CUMEM_ENABLE")
        return {"uuids": uuids, **{name: os.environ.get(name) for name in names}}

    def compute(self) -> float:
        return float(torch.ones(1 << 20, device=DEVICE).sum())

    def hold(self, nbytes: int) -> int:
        """Keep so much memory of the GPU, and return the pid."""
        self._held = torch.ones(nbytes, dtype=torch.uint8, device=DEVICE)
        self._held[-1].item()  # by now the memory is written
        return os.getpid()

    def initialize(self) -> torch.Tensor:
        """The method of the documented example, word for word."""
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(backend="nccl")

        test_tensor = torch.ones(size=(1, 1), dtype=torch.float32, device=torch.cuda.current_device())
        torch.distributed.all_reduce(test_tensor)
        return test_tensor

    def hello(self) -> int:
        return self._rank


def make(shapes: dict[str, tuple[int, ...]], device: str) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape, dtype=torch.bfloat16, device=device) for name, shape in shapes.items()}


def fill(weights: dict[str, torch.Tensor]) -> None:
    """Give every two neighbouring elements, and every two tensors, other bits."""
    for number, tensor in enumerate(weights.values()):
        flat = tensor.view(torch.int16).flatten()
        flat.copy_(torch.arange(number, number + flat.numel(), dtype=torch.int32, device=flat.device) % 30_011)


def digest(weights: dict[str, torch.Tensor]) -> str:
    """Return the SHA-256 of sums over every tensor's 64-bit words, computed where the tensors are."""
    told = hashlib.sha256()
    for name, tensor in weights.items():
        words = tensor.view(torch.uint8).flatten().view(torch.int64)
        weight = torch.arange(words.numel(), device=words.device) % 8191 + 1
        told.update(f"{name} {int(words.sum())} {int((words * weight).sum())}".encode())
    return told.hexdigest()


class Trainer(Worker):
    async def train(self, shapes: dict[str, tuple[int, ...]], device: str, apply: str, versions: int) -> dict[str, Any]:
        """Publish versions of a model; return the seconds of each and the digest of the last."""
        weights = make(shapes, device)
        fill(weights)
        sent, delivered = [], []
        began = time.perf_counter()
        async with publish(weights, to="reader", apply=apply) as publisher:
            await publisher.delivered()
            first = time.perf_counter() - began
            for _ in range(versions):
                for tensor in weights.values():
                    tensor.view(torch.int16).add_(1)
                tensor.flatten()[0].item()  # by now all of them are written
                began = time.perf_counter()
                await publisher.send()
                sent.append(time.perf_counter() - began)
                await publisher.delivered()
                delivered.append(time.perf_counter() - began)
            return {"first": first, "sent": sent, "delivered": delivered, "digest": digest(weights)}


class Reader(Worker):
    async def read(self, shapes: dict[str, tuple[int, ...]], device: str, apply: str, version: int) -> str:
        weights = make(shapes, device)
        async with follow(weights, of="trainer", apply=apply, timeout=120) as follower:
            await follower.wait_version(version)
            async with follower.reading():
                return digest(weights)
