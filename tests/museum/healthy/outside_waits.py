"""One rank at a time waits for what only the outside knows, a few seconds each, while all others wait for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import fcntl
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from rlinf_async import Cluster, NodePlacementStrategy, Worker

SECONDS = 5.0
SLEEP = [sys.executable, "-S", "-c", f"import time; time.sleep({SECONDS})"]
ANSWER = "import socket, sys, time; server = socket.socket(fileno=int(sys.argv[1])); peer, _ = server.accept(); "
ANSWER += f"time.sleep({SECONDS}); peer.send(b'answer')"
LOCK = "import fcntl, sys, time; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); "
LOCK += f"time.sleep({SECONDS})"


class Client(Worker):
    async def subprocess(self) -> None:
        process = await asyncio.create_subprocess_exec(*SLEEP)
        await process.wait()

    async def stream(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            command = [sys.executable, "-S", "-c", ANSWER, str(server.fileno())]
            child = subprocess.Popen(command, pass_fds=[server.fileno()])
            reader, writer = await asyncio.open_connection(*server.getsockname())
        assert await reader.read(6) == b"answer"
        writer.close()
        child.wait()

    async def executor(self) -> None:
        await asyncio.to_thread(subprocess.run, SLEEP, check=True)

    async def sleeping_executor(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, time.sleep, SECONDS)

    async def signal(self) -> None:
        heard = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
        late = f"{SLEEP[-1]}; import os; os.kill({os.getpid()}, {int(signal.SIGUSR1)})"
        child = subprocess.Popen([*SLEEP[:-1], late])
        await heard.wait()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
        child.wait()

    async def call_later(self) -> None:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(SECONDS, future.set_result, None)
        await future

    async def watched_file(self) -> None:
        ours, theirs = os.pipe()
        child = subprocess.Popen(SLEEP, stdout=theirs)
        os.close(theirs)
        ended = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(ours, ended.set_result, None)
        await ended
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
        child.wait()

    def command(self) -> None:
        subprocess.run(SLEEP, check=True)

    def pool(self) -> None:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map(time.sleep, [SECONDS, 0.1])

    def futures(self) -> None:
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            pool.submit(time.sleep, SECONDS).result()

    def queue_of_processes(self) -> None:
        context = multiprocessing.get_context("fork")
        items: multiprocessing.Queue[int] = context.Queue()
        child = context.Process(target=put_late, args=(items,))
        child.start()
        items.get()
        child.join()

    def event_of_processes(self) -> None:
        context = multiprocessing.get_context("fork")
        event = context.Event()
        child = context.Process(target=set_late, args=(event,))
        child.start()
        event.wait()
        child.join()

    def native_thread(self) -> None:
        """As in a library that computes in threads of its own: none of them is Python's, and Python's waits."""
        libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
        seconds = ctypes.cast(int(SECONDS), ctypes.c_void_p)
        assert libc.pthread_create(ctypes.byref(thread), None, libc.sleep, seconds) == 0
        assert libc.pthread_join(thread, None) == 0

    def timer_thread(self) -> None:
        timer = threading.Timer(SECONDS, lambda: None)
        timer.start()
        timer.join()

    def file_lock(self) -> None:
        with tempfile.NamedTemporaryFile() as file:
            child = subprocess.Popen([sys.executable, "-S", "-c", LOCK, file.name], stdout=subprocess.PIPE)
            assert child.stdout is not None
            child.stdout.readline()
            fcntl.flock(file, fcntl.LOCK_EX)
            child.communicate()

    def loop_in_a_thread(self) -> None:
        """A loop of the user's own, as libraries have them, which reads a pipe."""

        async def read() -> None:
            process = await asyncio.create_subprocess_exec(*SLEEP, stdout=subprocess.PIPE)
            assert process.stdout is not None
            await process.stdout.read()
            await process.wait()

        thread = threading.Thread(target=lambda: asyncio.run(read()))
        thread.start()
        thread.join()

    def data_loader(self) -> None:
        from torch.utils.data import DataLoader

        for _ in DataLoader(SlowData(), num_workers=1, batch_size=None):
            pass


class SlowData:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        time.sleep(SECONDS / 2)
        return index


def set_late(event: Any) -> None:
    time.sleep(SECONDS)
    event.set()


def put_late(items: Any) -> None:
    time.sleep(SECONDS)
    items.put(1)


KINDS = [name for name, method in vars(Client).items() if callable(method) and not name.startswith("_")]


async def main(kinds: list[str]) -> None:
    async with Cluster(num_nodes=1) as cluster:
        client = Client.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="client")
        await client
        for kind in kinds:
            print(kind, flush=True)
            await getattr(client[1:2], kind)()
        process = await asyncio.create_subprocess_exec(*SLEEP)
        print("the driver itself", flush=True)
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or KINDS))
