"""The other process of a test: ``python -m tests.weights.pipe_child <fd> <role> <facts as JSON>``.

It speaks to the test over standard output, one word per line, and has one end of a pipe for the weights.
"""

from __future__ import annotations

import asyncio
import json
import sys
from multiprocessing.connection import Connection
from typing import Any

import torch

from rlinf_async.weights import Publisher, Subscriber
from tests._support.fake_gpus import FakeGpus, NoGpus, OnCuda
from tests._support.socket_links import inviting, joining

SHAPES = {"a": (1000,), "b": (300, 40), "c": (1,), "d.e": (70_000,), "d.f": (256, 256)}


def model(value: float, scale: int = 1) -> dict[str, torch.Tensor]:
    """Every number of every leaf is the same."""
    return {name: torch.full((shape[0] * scale, *shape[1:]), float(value)) for name, shape in SHAPES.items()}


def values_of(weights: dict[str, torch.Tensor]) -> set[float]:
    """All that a model shows: one value, or it is torn."""
    return {float(bound) for tensor in weights.values() for bound in (tensor.min(), tensor.max())}


def gpus_of(facts: dict[str, Any]) -> Any:
    """What stands in for CUDA where the role is played on a GPU; or CUDA's."""
    if facts.get("cuda"):
        return OnCuda()
    return FakeGpus() if facts.get("gpu") else NoGpus()


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


async def read(pipe: Any, facts: dict[str, Any]) -> None:
    """Reads again and again, and looks at every leaf each time, until the sender has closed the link."""
    gpus = gpus_of(facts)
    weights = gpus.put(model(0, facts.get("scale", 1)))
    seen: dict[int, int] = {}
    torn: list[str] = []
    async with Subscriber(joining(pipe), weights, apply=facts["apply"], gpus=gpus) as subscriber:
        await subscriber.connect()
        task = subscriber.serve()
        say("connected")
        last, is_registered = 0, False
        while not task.done():
            async with subscriber.reading() as version:
                found = await asyncio.to_thread(values_of, weights)
            if found != {float(version)} or version < last:
                torn.append(f"version {version} after {last} shows {sorted(found)}")
            seen[version] = seen.get(version, 0) + 1
            last = version
            is_registered |= any(reader.is_registered for reader in list(subscriber._applying.leases._known.values()))
            await asyncio.sleep(0)
        story = {"seen": len(seen), "last": last, "torn": torn[:3], "after": sorted(values_of(weights))}
        say(json.dumps({**story, "is_registered": is_registered}))


async def send(pipe: Any, facts: dict[str, Any]) -> None:
    """Publishes for ever."""
    gpus = gpus_of(facts)
    publisher = Publisher(gpus.put(model(0, facts["scale"])), gpus=gpus, apply=facts.get("apply", "copy"))
    publisher.add(0, inviting(pipe))
    await publisher.connect()
    version = 0
    while True:
        version += 1
        await (await publisher.publish(gpus.put(model(version, facts["scale"]))))


if __name__ == "__main__":
    torch.set_num_threads(1)
    role = {each.__name__: each for each in (read, send)}[sys.argv[2]]
    asyncio.run(role(Connection(int(sys.argv[1])), json.loads(sys.argv[3])))
