"""A run whose second node is cut off for good; a script for ``rlinf-launch``.

It says ``GO RUN`` once a call, a receive and a get wait for the other node, and then what each of them was told, when.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

from rlinf_async import Cluster, NodeLost, NodePlacementStrategy, Worker
from rlinf_async.errors import PeerLost


class Waiting(Worker):
    async def sleep(self) -> None:
        await asyncio.sleep(600)

    async def listen(self) -> list[Any]:
        """What a receive from the other node ends with."""
        try:
            await self.recv("far", 0)
        except PeerLost as lost:
            return [type(lost).__name__, getattr(lost, "node_rank", None), getattr(lost, "reason", "")]
        return []


async def main() -> None:
    async with Cluster(num_nodes=2) as cluster:
        near = Waiting.create_group().launch(cluster, NodePlacementStrategy([0]), name="near")
        far = Waiting.create_group().launch(cluster, NodePlacementStrategy([1]), name="far")
        await asyncio.gather(near, far)
        listening, sleeping = near.listen(), far.sleep()
        print("GO", os.environ["RLINF_RUN_ID"], flush=True)
        began = time.monotonic()
        told: dict[str, Any] = {}
        try:
            await sleeping
        except NodeLost as lost:
            told["driver"] = ["NodeLost", lost.node_rank, lost.reason]
        told["seconds"] = time.monotonic() - began
        told["worker"] = (await listening)[0]
        print(json.dumps(told), flush=True)
        await asyncio.sleep(float(os.environ.get("STAY_S", "0")))


if __name__ == "__main__":
    asyncio.run(main())
