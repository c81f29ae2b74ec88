"""A driver that blocks its loop in calls that end by themselves, while a rank waits for what it does next."""

from __future__ import annotations

import asyncio
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker

SECONDS = 5.0
ECHO = [sys.executable, "-S", "-c", f"import time; time.sleep({SECONDS}); print(4)"]
ANSWER = "import socket, sys, time; server = socket.socket(fileno=int(sys.argv[1])); peer, _ = server.accept(); "
ANSWER += f"time.sleep({SECONDS}); peer.send(b'4')"


class Rollout(Worker):
    def generate(self, prompts: Channel, number: int) -> list[str]:
        return [prompts.get() for _ in range(number)]


def joined() -> None:
    thread = threading.Thread(target=time.sleep, args=(SECONDS,))
    thread.start()
    thread.join()


def pooled() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, SECONDS).result()


def pooled_by_processes() -> None:
    with ProcessPoolExecutor(1) as pool:
        pool.submit(time.sleep, SECONDS).result()


def read_by_a_thread() -> None:
    lines: queue.Queue[str] = queue.Queue()
    with subprocess.Popen(ECHO, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        reader = threading.Thread(target=lambda: lines.put(child.stdout.readline()))  # type: ignore[union-attr]
        reader.start()
        lines.get()
        reader.join()


def asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        fd = server.fileno()
        child = subprocess.Popen([sys.executable, "-S", "-c", ANSWER, str(fd)], pass_fds=[fd])
        with child, socket.create_connection(server.getsockname()) as client:
            assert client.recv(1) == b"4"


def timed() -> None:
    threading.Event().wait(SECONDS)


def signalled() -> None:
    woken = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: woken.set())
    main = threading.main_thread().ident
    assert main is not None
    child = subprocess.Popen(ECHO, stdout=subprocess.DEVNULL)
    threading.Thread(target=lambda: (child.wait(), signal.pthread_kill(main, signal.SIGUSR1))).start()
    woken.wait()


KINDS: list[Callable[[], None]] = [joined, pooled, pooled_by_processes, read_by_a_thread, asked, timed, signalled]


async def main() -> None:
    async with Cluster(num_nodes=1) as cluster:
        rollout = await Rollout.create_group().launch(cluster, NodePlacementStrategy([0]), name="rollout")
        prompts = await Channel.create("prompts")
        generated = rollout.generate(prompts, len(KINDS))
        for kind in KINDS:
            print(kind.__name__, flush=True)
            kind()
            await prompts.put(kind.__name__)
        assert len((await generated)[0]) == len(KINDS)


if __name__ == "__main__":
    asyncio.run(main())
