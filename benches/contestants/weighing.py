"""Measurement of weight synchronisation, and ``Weights``, the interface that each framework implements.

The work is the same for all.  Version 7 is a model that is full of sevens, so that a receiver sees at once whether it
has that version whole; the last one is different everywhere, and compared by its sums after the trainer's model has
changed: who only shows the trainer's own memory to its receivers fails.
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
"""Versions that are not counted: by then all the memory there is has been used once."""


def leaves(shape: str, size: int) -> dict[str, int]:
    """The elements of a model's float32 tensors, by name, together of so many bytes.

    Args:
        shape: ``"llm"``: 290, in layers, the smallest a 2048th of all and the largest a 16th; ``"many"``: ten thousand;
            ``"one"``; ``"mlp"``: three layers.
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
    """A module with these parameters, whose memory is not there yet on a CPU."""
    import torch

    # Python and the C library keep what the last one was in: gigabytes in every process, and this machine may not have
    # so many.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    found = torch.nn.Module()
    for name, elements in leaves(shape, size).items():
        found.register_parameter(name, torch.nn.Parameter(torch.empty(elements, device=device), requires_grad=False))
    return found


def fill(module: Any, version: int) -> None:
    """On a GPU it has been done, and not only begun."""
    import torch

    for parameter in module.parameters():
        parameter.fill_(version)
    if any(parameter.is_cuda for parameter in module.parameters()):
        torch.cuda.synchronize()


def fill_with_pattern(module: Any) -> list[int]:
    """Values that differ, and the sum of each tensor."""
    import torch

    first = 0
    for parameter in module.parameters():
        last, device = first + parameter.numel(), parameter.device
        torch.arange(first, last, dtype=torch.float32, device=device, out=parameter.data)
        first += 7919
    return sums(module)


def sums(module: Any) -> list[int]:
    """Of each tensor, of its bits as integers; piece by piece, because torch makes a copy twice as large of each."""
    import torch

    pieces = (parameter.data.view(torch.int32).split(1 << 22) for parameter in module.parameters())
    return [sum(int(piece.sum(dtype=torch.int64)) for piece in each) for each in pieces]


def check(module: Any, version: int) -> None:
    """
    Raises:
        ValueError: some of it is of another version.
    """
    import torch

    for name, parameter in module.named_parameters():
        least, most = torch.aminmax(parameter.data)
        if not least == most == version:
            raise ValueError(f"{name} of version {version} holds values from {least.item():g} to {most.item():g}")


class Weights:
    """Interface that each framework implements: a trainer and receivers, each with a model."""

    async def start(self, receivers: int) -> None:
        """Starts the framework and launches the workers."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Ends everything."""

    async def open(self, shape: str, size: int, receivers: int, apply: str) -> None:
        """Models, and whatever a sync needs, at the trainer and at the first so many receivers.

        Args:
            apply: ``"copy"``: each receiver has memory of its own; ``"map"``: they look into memory that they share.
        """
        raise NotImplementedError

    async def sync(self, version: int) -> Sequence[float]:
        """Fills the trainer's model with a version and sends it.

        Returns:
            Seconds until the trainer's model may change, until the last receiver has it, and, where the framework
            knows it, for which a receiver could not use its own.
        """
        raise NotImplementedError

    async def check(self, version: int) -> None:
        """All receivers look whether they have that version whole."""
        raise NotImplementedError

    async def compare(self) -> tuple[list[int], Sequence[list[int]]]:
        """Sends the pattern, and then changes the trainer's model.

        Returns:
            The sums of what was sent, and of what each receiver has.
        """
        raise NotImplementedError

    async def shut(self) -> None:
        """Gives back what ``open`` took."""
        raise NotImplementedError


class Weighing:
    """The works, by the names that the bench uses."""

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
        """Seconds of ``count`` versions: ``staged``, ``total``, and ``pause`` where there is one."""
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
    """The main of a framework's file."""
    asyncio.run(works.serve(Weighing(weights)))
