"""A driver that serves: all wait for a request, which comes from outside after some seconds, and then for a signal.

In the background tasks and threads wait for work that never comes.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
import threading

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker

CLIENT = "import socket, sys, time; time.sleep(8); server = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
CLIENT += "server.sendall(b'2 + 2\\n'); server.shutdown(socket.SHUT_WR); server.recv(10)"
SIGNAL = f"import os, time; time.sleep(8); os.kill({os.getpid()}, {int(signal.SIGUSR1)})"


def wait_for_work() -> threading.Thread:
    thread = threading.Thread(target=queue.Queue().get, daemon=True)
    thread.start()
    return thread


class Answerer(Worker):
    async def prepare(self) -> None:
        self.waiters = (wait_for_work(), asyncio.create_task(asyncio.Queue[str]().get()))

    async def answer(self, requests: Channel) -> str:
        return f"answer to {await requests.get()}"


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        answerer = Answerer.create_group().launch(cluster, NodePlacementStrategy([0]), name="answerer")
        await answerer.prepare()
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
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stop.set)
        subprocess.Popen([sys.executable, "-S", "-c", SIGNAL])
        await stop.wait()


def script() -> None:
    """The same without asyncio."""
    with Cluster(num_nodes=1) as cluster:
        answerer = Answerer.create_group().launch(cluster, NodePlacementStrategy([0]), name="answerer")
        answerer.prepare().wait()
        stop = threading.Event()
        signal.signal(signal.SIGUSR1, lambda *_: stop.set())
        subprocess.Popen([sys.executable, "-S", "-c", SIGNAL])
        stop.wait()


if __name__ == "__main__":
    wait_for_work()
    asyncio.run(main())
    script()
