"""Measurement of weight synchronisation, and ``Weights``, the interface that each framework implements.

The measurements are the same for all frameworks. Version 7 is a model full of sevens, so a receiver can check at once
that it has the whole version. The last version has different values everywhere. Its sums are compared after the
trainer's model has changed, so a framework that only exposes the trainer's own memory fails.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Sequence
from typing import Any

import works
from works import Samples

MEBI = 1 << 20
WARM_UP = 3
"""Versions that are not counted; after them, all memory has been used once."""


def leaves(shape: str, size: int) -> dict[str, int]:
    """Return the sizes of a model's float32 tensors, by name, with this many bytes in total.

    Args:
        shape: ``"llm"`` for 290 tensors in layers, of 1/2048 to 1/16 of the total; ``"many"`` for ten thousand;
            ``"one"``; ``"mlp"`` for three layers.
    """
    elements = size // 4
    if shape == "one":
        return {"weight": elements}
    if shape == "many":
        each, rest = divmod(elements, 10_000)
        return {f"weight_{index}": each + (index < rest) for index in range(10_000)}
    if shape == "mlp":
        found = {"weight_0": elements // 3, "bias_0": 128, "weight_1": elements // 2, "bias_1": 128}
        return {**found, "weight_2": elements - sum(found.values())}
    if shape != "llm":
        raise ValueError(f"there is no shape {shape!r}")
    unit = elements // 2048
    layer = {
        "norm_0": 1, "query": 8, "key": 1, "value": 1, "out": 8, "norm_1": 1, "gate": 12, "up": 12, "down": 12,
    }  # fmt: skip
    found = {"embedding": 128 * unit, "head": 128 * unit}
    for index in range(32):
        found |= {f"layer_{index}_{name}": units * unit for name, units in layer.items()}
    return found


def model(shape: str, size: int, device: str = "cpu") -> Any:
    """Return a module with these parameters, whose memory on a CPU is not allocated yet."""
    import torch

    # Python and the C library keep the memory of the last module: gigabytes in every process, which this machine may
    # not have.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    found = torch.nn.Module()
    for name, elements in leaves(shape, size).items():
        found.register_parameter(name, torch.nn.Parameter(torch.empty(elements, device=device), requires_grad=False))
    return found


def fill(module: Any, version: int) -> None:
    """Fill the model with a version; on a GPU, wait until that is done."""
    import torch

    for parameter in module.parameters():
        parameter.fill_(version)
    if any(parameter.is_cuda for parameter in module.parameters()):
        torch.cuda.synchronize()


def fill_with_pattern(module: Any) -> list[int]:
    """Fill the model with values that differ, and return the sum of each tensor."""
    import torch

    first = 0
    for parameter in module.parameters():
        last, device = first + parameter.numel(), parameter.device
        torch.arange(first, last, dtype=torch.float32, device=device, out=parameter.data)
        first += 7919
    return sums(module)


def sums(module: Any) -> list[int]:
    """Return the sum of each tensor's bits as integers, piece by piece because torch copies each to twice its size."""
    import torch

    pieces = (parameter.data.view(torch.int32).split(1 << 22) for parameter in module.parameters())
    return [sum(int(piece.sum(dtype=torch.int64)) for piece in each) for each in pieces]


def check(module: Any, version: int) -> None:
    """Check that a model has a version.
    Raises:
        ValueError: some of the model has another version.
    """
    import torch

    for name, parameter in module.named_parameters():
        least, most = torch.aminmax(parameter.data)
        if not least == most == version:
            raise ValueError(f"{name} of version {version} holds values from {least.item():g} to {most.item():g}")


class Weights:
    """Interface that each framework implements: a trainer and receivers, each with a model."""

    async def start(self, receivers: int) -> None:
        """Start the framework and launch the workers."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop everything."""

    async def open(self, shape: str, size: int, receivers: int, apply: str) -> None:
        """Create the models and everything that a sync needs, at the trainer and at the first receivers.

        Args:
            apply: ``"copy"`` if each receiver has its own memory; ``"map"`` if they map shared memory.
        """
        raise NotImplementedError

    async def sync(self, version: int) -> Sequence[float]:
        """Fill the trainer's model with a version and send it.

        Returns:
            Seconds until the trainer's model may change, until the last receiver has the version, and, if the framework
            reports it, during which a receiver could not use its model.
        """
        raise NotImplementedError

    async def check(self, version: int) -> None:
        """Check that all receivers have the whole version."""
        raise NotImplementedError

    async def compare(self) -> tuple[list[int], Sequence[list[int]]]:
        """Send the pattern, and then change the trainer's model.

        Returns:
            The sums of the sent model, and of each receiver's.
        """
        raise NotImplementedError

    async def shut(self) -> None:
        """Release everything that ``open`` created."""
        raise NotImplementedError


class Weighing:
    """Measurements by the names that the bench uses."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    async def start(self, receivers: int) -> Samples:
        await self._weights.start(receivers)
        return []

    async def close(self) -> Samples:
        await self._weights.stop()
        return []

    async def sync(
        self, shape: str, size: int, receivers: int, apply: str, count: int, warm_up: int = WARM_UP
    ) -> dict[str, Samples]:
        """Return the seconds of ``count`` versions: ``staged``, ``total``, and ``pause`` if there is one."""
        weights = self._weights
        taken = []
        await weights.open(shape, size, receivers, apply)
        try:
            for version in range(1, warm_up + count + 1):
                seconds = await weights.sync(version)
                if version > warm_up:
                    taken.append(seconds)
                    await weights.check(version)
            sent, had = await weights.compare()
        finally:
            await weights.shut()
        if len(had) != receivers or any(each != sent for each in had):
            raise ValueError("a receiver has other weights than were sent")
        return dict(zip(("staged", "total", "pause"), map(list, zip(*taken, strict=True)), strict=False))


def run(weights: Weights) -> None:
    """Run a framework's contestant script."""
    asyncio.run(works.serve(Weighing(weights)))
