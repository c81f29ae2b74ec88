"""Large results and small calls over a network that is too thin for them; a script for ``rlinf-launch``.

    python -m tests._support.thin_link_traffic NBYTES

It says ``GO`` once the other node is there, and in the end one line of JSON: seconds of the large result, number and
longest time of the small calls meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from rlinf_async import Cluster, NodePlacementStrategy, Worker


class Far(Worker):
    async def result(self, nbytes: int) -> bytes:
        return bytes(nbytes)

    async def number(self, number: int) -> int:
        return number


async def main(nbytes: int) -> None:
    async with Cluster(num_nodes=2) as cluster:
        far = Far.create_group().launch(cluster, NodePlacementStrategy([1]), name="far")
        assert await far.number(1) == [1]
        print("GO", flush=True)
        await asyncio.sleep(1)  # until the network is as it shall be
        began = time.monotonic()
        large = far.result(nbytes)
        calls, slowest = 0, 0.0
        while not large.done():
            since = time.monotonic()
            assert await far.number(calls) == [calls]
            calls, slowest = calls + 1, max(slowest, time.monotonic() - since)
            await asyncio.sleep(0.05)
        (result,) = await large
        assert len(result) == nbytes
        told = {"seconds": time.monotonic() - began, "calls": calls, "slowest": slowest}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
