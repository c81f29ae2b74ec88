"""Names that are waited for until somebody makes them, and workers that take long to begin."""

from __future__ import annotations

import asyncio
import time

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker, WorkerGroup

SECONDS = 6.0


class Model(Worker):
    def __init__(self) -> None:
        super().__init__()
        time.sleep(SECONDS)  # reads a checkpoint

    def answer(self, prompt: str) -> str:
        return f"answer to {prompt}"


class Asker(Worker):
    def ask(self) -> list[str]:
        return WorkerGroup.from_group_name(Model, "model").answer("2 + 2").wait()

    async def listen(self) -> str:
        channel = await Channel.connect("late")
        return str(await channel.get())


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        asker = Asker.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="asker")
        asked = asker.ask()
        await asyncio.sleep(SECONDS)
        model = Model.create_group().launch(cluster, NodePlacementStrategy([0]), name="model")
        assert (await asked)[1] == ["answer to 2 + 2"]
        await model
        listened = asker.listen()
        await asyncio.sleep(SECONDS)
        channel = await Channel.create("late")
        await asyncio.gather(channel.put(1), channel.put(2))
        assert sorted(await listened) == ["1", "2"]


if __name__ == "__main__":
    asyncio.run(main())
