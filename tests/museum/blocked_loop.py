"""A driver that joins a thread in a coroutine, and so stops the loop that the thread needs; a rank waits for both."""

from __future__ import annotations

import asyncio
import threading

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker


class Rollout(Worker):
    def generate(self, prompts: Channel) -> str:
        return str(prompts.get())  # the rank waits for a prompt


async def next_prompt() -> str:
    await asyncio.sleep(0.1)
    return "2 + 2"


def feed(prompts: Channel, loop: asyncio.AbstractEventLoop) -> None:
    print("still", flush=True)
    prompt = asyncio.run_coroutine_threadsafe(next_prompt(), loop).result()  # the thread waits for the loop
    prompts.put(prompt)


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0]), name="rollout")
        await rollout
        prompts = await Channel.create("prompts")
        generated = rollout.generate(prompts)
        feeder = threading.Thread(target=feed, args=(prompts, asyncio.get_running_loop()), name="feeder")
        feeder.start()
        feeder.join()  # the loop waits for the thread
        print(await generated)


if __name__ == "__main__":
    asyncio.run(main())
