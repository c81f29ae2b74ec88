"""A driver that serves: it and its ranks wait for a request, which comes from outside after some seconds."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker

CLIENT = "import socket, sys, time; time.sleep(8); server = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
CLIENT += "server.sendall(b'2 + 2\\n'); server.shutdown(socket.SHUT_WR); server.recv(10)"


class Answerer(Worker):
    async def answer(self, requests: Channel) -> str:
        return f"answer to {await requests.get()}"


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        answerer = Answerer.create_group().launch(cluster, NodePlacementStrategy([0]), name="answerer")
        requests = await Channel.create("requests")
        answered = answerer.answer(requests)
        served = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await requests.put((await reader.readline()).decode())
            writer.write((await answered)[0].encode())
            writer.close()
            served.set()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            client = subprocess.Popen([sys.executable, "-S", "-c", CLIENT, str(port)])
            await served.wait()
            client.wait()


if __name__ == "__main__":
    asyncio.run(main())
