"""Step e: weights of a model with the shapes of a 7B, by every way between a trainer and a reader."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from rlinf_async import FlexiblePlacementStrategy
from tests.gpu.step import Step, main
from tests.gpu.workers import SHAPES_OF_7B, Reader, Trainer, one_node

VERSIONS = 2
"""After the first, which meets memory that is new."""

WAYS = {
    "copy on one GPU": ("cuda", "cuda", "copy"),
    "map on one GPU": ("cuda", "cuda", "map"),
    "device to host": ("cuda", "cpu", "copy"),
    "host to device": ("cpu", "cuda", "copy"),
}
"""Devices of the trainer and of the reader, and how the reader applies."""


def shapes_that_fit(free: int, host: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a 7B, or its first layers where memory is short.

    The GPU needs room for six models: the trainer's, three versions, the reader's and what is temporary; the host for
    four.
    """
    room = min(free // 6, host // 4)
    found, nbytes = {}, 0
    for name, shape in SHAPES_OF_7B.items():
        nbytes += 2 * math.prod(shape)
        if nbytes > room:
            break
        found[name] = shape
    return found


def host_memory() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))


def by_way(name: str, trainer_on: str, reader_on: str, apply: str) -> Callable[[Step], str]:
    def check(step: Step) -> str:
        shapes = shapes_that_fit(torch.cuda.mem_get_info()[0], host_memory())
        gigabytes = sum(2 * math.prod(shape) for shape in shapes.values()) / 1e9
        with one_node() as cluster:
            place = FlexiblePlacementStrategy([[0]])
            trainer = Trainer.create_group().launch(cluster, place, name="trainer")
            reader = Reader.create_group().launch(cluster, place, name="reader")
            reading = reader.read(shapes, reader_on, apply, VERSIONS + 1)
            told = trainer.train(shapes, trainer_on, apply, VERSIONS).wait(120)[0]
            assert reading.wait(120) == [told["digest"]], "the reader has other weights"
        for what in ("sent", "delivered"):
            step.say(f"{name}, {gigabytes:.1f} GB, {what}", min(told[what]), "s")
        step.say(f"{name}, {gigabytes:.1f} GB, first version", told["first"], "s")
        return f"{gigabytes / min(told['delivered']):.1f} GB/s, equal by digest"

    check.__name__ = "check_" + name.replace(" ", "_")
    return check


CHECKS = [by_way(name, *facts) for name, facts in WAYS.items()]

if __name__ == "__main__":
    main("e", CHECKS)
