"""Traffic of every kind between two nodes, numbered, for a network that comes and goes; a script for ``rlinf-launch``.

    python -m tests._support.crossing_traffic SECONDS

It says ``GO`` once all of it flows, and in the end one line of JSON: what was sent, what has arrived or the error
instead, and the longest time that a call took.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import torch

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker, follow, publish

_SIZES = (4, 100_000, 400_000)
"""Elements of a message's tensor: inside the frame, by way of the daemons, and over a connection of its own."""


class End(Worker):
    """One end of the traffic."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(300, 300)
        self.calls = 0
        self.is_stopping = False

    async def stop(self) -> None:
        self.is_stopping = True

    async def call(self, number: int) -> int:
        self.calls += 1
        return number

    async def made(self) -> int:
        return self.calls

    async def send_all(self, to: str) -> int:
        number = 0
        while not self.is_stopping:
            await self.send((number, torch.full((_SIZES[number % 3],), float(number))), to, 0)
            number += 1
            await asyncio.sleep(0.005)
        await self.send(None, to, 0)
        return number

    async def receive_all(self, of: str) -> int:
        number = 0
        while (message := await self.recv(of, 0)) is not None:
            assert message[0] == number, f"message {message[0]} where {number} was due"
            assert bool((message[1] == number).all())
            number += 1
        return number

    async def put_all(self, channel: Channel) -> int:
        number = 0
        while not self.is_stopping:
            await channel.put((number, bytes(_SIZES[number % 2])))
            number += 1
            await asyncio.sleep(0.005)
        await channel.put(None)
        return number

    async def get_all(self, channel: Channel) -> int:
        number = 0
        while (item := await channel.get()) is not None:
            assert item[0] == number, f"item {item[0]} where {number} was due"
            number += 1
        return number

    async def broadcast_all(self, near: str, far: str) -> int:
        number = 0
        while True:
            value = -1 if self.is_stopping else number
            heard = await self.broadcast(value, groups=[(near, 0), (far, 0)], src=(near, 0))
            if heard == -1:
                return number
            assert heard == number, f"broadcast {heard} where {number} was due"
            number += 1
            await asyncio.sleep(0.01)

    async def train(self, to: str) -> int:
        async with publish(self.model, to=to) as weights:
            while not self.is_stopping:
                with torch.no_grad():
                    for leaf in self.model.parameters():
                        leaf.fill_(float(weights.version + 1))
                await weights.send()
                await asyncio.sleep(0.05)
            return int(weights.version)

    async def roll_out(self, of: str, last: int = 0) -> int:
        async with follow(self.model, of=of) as weights:
            seen = 0
            while not self.is_stopping:
                async with weights.reading() as version:
                    assert version >= seen, f"version {version} after {seen}"
                    seen = version
                    values = {float(value) for leaf in self.model.parameters() for value in leaf.unique()}
                    assert len(values) == 1 or version == 1, f"version {version} is torn"
                await asyncio.sleep(0.01)
            return seen


async def call_all(group: Any, until: float, slowest: list[float]) -> int:
    number = 0
    while time.monotonic() < until:
        began = time.monotonic()
        assert await group.call(number) == [number]
        slowest[0] = max(slowest[0], time.monotonic() - began)
        number += 1
    return number


async def main(seconds: float) -> None:
    async with Cluster(num_nodes=2) as cluster:
        near = End.create_group().launch(cluster, NodePlacementStrategy([0]), name="near")
        far = End.create_group().launch(cluster, NodePlacementStrategy([1]), name="far")
        await asyncio.gather(near, far)
        here = await Channel.create("here", cluster=cluster, node_rank=0, maxsize=50)
        there = await Channel.create("there", cluster=cluster, node_rank=1, maxsize=50)
        flows = {
            "sent": near.send_all("far"), "received": far.receive_all("near"),
            "sent back": far.send_all("near"), "received back": near.receive_all("far"),
            "put here": far.put_all(here), "got here": near.get_all(here),
            "put there": near.put_all(there), "got there": far.get_all(there),
            "broadcast": near.broadcast_all("near", "far"), "heard": far.broadcast_all("near", "far"),
            "versions": near.train("far"), "applied": far.roll_out("near"),
        }  # fmt: skip
        await asyncio.gather(near.made(), far.made())
        print("GO", flush=True)
        slowest = [0.0]
        until = time.monotonic() + seconds
        told: dict[str, Any] = {}
        calling = {"calls": call_all(near, until, slowest), "calls far": call_all(far, until, slowest)}
        for name, made in zip(calling, await asyncio.gather(*calling.values(), return_exceptions=True), strict=True):
            told[name] = repr(made) if isinstance(made, BaseException) else made
        await asyncio.gather(near.stop(), far.stop())
        for name, outcome in zip(flows, await asyncio.gather(*flows.values(), return_exceptions=True), strict=True):
            told[name] = repr(outcome) if isinstance(outcome, BaseException) else outcome[0]
        told["ran"], told["ran far"] = (await near.made())[0], (await far.made())[0]
        told["slowest"] = slowest[0]
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
