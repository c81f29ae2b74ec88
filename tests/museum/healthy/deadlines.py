"""Waits that end by themselves: deadlines of a receive, a get, a version, a call and a block of code."""

from __future__ import annotations

import asyncio
import threading

import torch

from rlinf_async import Channel, Cluster, DeadlineExceeded, NodePlacementStrategy, Worker, follow

SECONDS = 6.0


class Rollout(Worker):
    async def receive(self) -> None:
        try:
            await self.recv("rollout", 1 - self._rank, timeout=SECONDS)
        except DeadlineExceeded as error:
            print(error, flush=True)

    def get(self, channel: Channel) -> None:
        try:
            channel.get(timeout=SECONDS)
        except DeadlineExceeded as error:
            print(error, flush=True)

    async def event(self) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                await asyncio.Event().wait()
        except TimeoutError:
            print("no event", flush=True)

    def condition(self) -> None:
        threading.Event().wait(SECONDS)

    async def version(self) -> None:
        weights = follow(torch.nn.Linear(2, 2), of="trainer", timeout=SECONDS)
        try:
            await weights.wait_version(1, timeout=SECONDS)
        except DeadlineExceeded as error:
            print(error, flush=True)
        await weights.close()

    async def forever(self) -> None:
        await asyncio.Event().wait()


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="rollout")
        await rollout.receive()
        await rollout.get(await Channel.create("empty"))
        await rollout.event()
        await rollout.condition()
        trainer = Rollout.create_group().launch(cluster, NodePlacementStrategy([0]), name="trainer")
        await trainer
        await rollout.version()
        try:
            async with asyncio.timeout(SECONDS):
                await rollout.forever()
        except TimeoutError:
            print("not for ever", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
