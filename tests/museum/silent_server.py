"""A reward server that takes requests and never answers one."""

from __future__ import annotations

import asyncio
import socket

from rlinf_async import Cluster, NodePlacementStrategy, Worker


class Reward(Worker):
    def score(self, address: tuple[str, int], answers: list[str]) -> list[float]:
        if self._rank == 0:
            return [0.0 for _ in answers]  # its prompts have a rule, and need no server
        with socket.create_connection(address) as server:
            server.sendall("\n".join(answers).encode())
            print("still", flush=True)
            reply = server.recv(65536)  # waits for the server
            return [float(score) for score in reply.split()]


async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with Cluster(num_nodes=1) as cluster:
            reward = Reward.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="reward")
            await reward.score(server.getsockname(), ["4", "5"])  # the driver waits


if __name__ == "__main__":
    asyncio.run(main())
