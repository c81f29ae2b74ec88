"""What the machine itself can do: the floor beneath the frameworks' figures, measured beside them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import works

MESSAGE = b"x" * 64

IMPORT = "import time; began = time.perf_counter(); import torch; print(time.perf_counter() - began)"

FORKS = """
import gc, os, signal, sys, time
import torch
gc.freeze()
count = int(sys.argv[1])
began = time.perf_counter()
read, write = os.pipe()
children = []
for _ in range(count):
    child = os.fork()
    if not child:
        os.write(write, b"x")
        signal.pause()
    children.append(child)
left = count
while left:
    left -= len(os.read(read, left))
print(time.perf_counter() - began)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


class Limits:
    """Works of the same shape as the frameworks'."""

    def __init__(self) -> None:
        self._echoes: list[socket.socket] = []
        self._arrays: tuple[Any, Any] | None = None
        self._grpc: Any = None

    async def import_torch(self) -> works.Samples:
        """One ``import torch`` in a bare interpreter."""
        return [float(_python(IMPORT))]

    async def forks(self, count: int) -> works.Samples:
        """Forks of a process that has imported torch, until each has said a byte."""
        return [float(_python(FORKS, str(count)))]

    async def echo(self, count: int, processes: int) -> works.Samples:
        """A message to each of several processes over UNIX sockets, and their answers."""
        sockets = self._echo_sockets(processes)
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            for sock in sockets:
                sock.send(MESSAGE)
            for sock in sockets:
                sock.recv(64, socket.MSG_WAITALL)
            samples.append(time.perf_counter() - began)
        return samples

    async def echo_pipelined(self, count: int, processes: int) -> works.Samples:
        """Messages per second, echoed; up to sixty-four to each process are in flight, each a write of its own."""
        sockets = self._echo_sockets(processes)
        began = time.perf_counter()
        for sent in range(0, count, 64):
            batch = min(64, count - sent)
            for sock in sockets:
                for _ in range(batch):
                    sock.send(MESSAGE)
            for sock in sockets:
                sock.recv(64 * batch, socket.MSG_WAITALL)
        return [count * processes / (time.perf_counter() - began)]

    def _echo_sockets(self, processes: int) -> list[socket.socket]:
        while len(self._echoes) < processes:
            near, far = socket.socketpair()
            multiprocessing.get_context("spawn").Process(target=_echo, args=(far,), daemon=True).start()
            far.close()
            near.send(MESSAGE)
            near.recv(64, socket.MSG_WAITALL)
            self._echoes.append(near)
        return self._echoes[:processes]

    async def memcpy(self, mebibytes: int, count: int) -> works.Samples:
        """One copy of warm memory by one thread."""
        import numpy as np

        if self._arrays is None:
            source = np.ones(mebibytes << 18, dtype=np.float32)
            self._arrays = source, source.copy()
        source, target = self._arrays
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            np.copyto(target, source)
            samples.append(time.perf_counter() - began)
        return samples

    async def grpc_echo(self, count: int) -> works.Samples:
        """A message over a bidirectional grpc.aio stream without TLS, and its answer."""
        stream = await self._grpc_stream()
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            await stream.write(MESSAGE)
            await stream.read()
            samples.append(time.perf_counter() - began)
        return samples

    async def grpc_echo_pipelined(self, count: int) -> works.Samples:
        """Messages per second over that stream, written without waiting for the answers."""
        stream = await self._grpc_stream()

        async def write() -> None:
            for _ in range(count):
                await stream.write(MESSAGE)

        began = time.perf_counter()
        writing = asyncio.create_task(write())
        for _ in range(count):
            await stream.read()
        await writing
        return [count / (time.perf_counter() - began)]

    async def _grpc_stream(self) -> Any:
        if self._grpc is None:
            import grpc

            near, far = multiprocessing.Pipe()
            multiprocessing.get_context("spawn").Process(target=_serve_grpc, args=(far,), daemon=True).start()
            port = await asyncio.get_running_loop().run_in_executor(None, near.recv)
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
            stream = channel.stream_stream("/bench/echo")()
            await stream.write(MESSAGE)
            await stream.read()
            self._grpc = channel, stream
        return self._grpc[1]

    async def close(self) -> works.Samples:
        for sock in self._echoes:
            sock.close()
        if self._grpc is not None:
            await self._grpc[0].close()
        return []


def _python(code: str, *args: str) -> str:
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _echo(sock: socket.socket) -> None:
    while data := sock.recv(1 << 16):
        sock.sendall(data)


def _serve_grpc(pipe: Any) -> None:
    import uvloop

    uvloop.run(_grpc_server(pipe))


async def _grpc_server(pipe: Any) -> None:
    import grpc

    async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"echo": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipe.send(port)
    await server.wait_for_termination()


if __name__ == "__main__":
    import uvloop

    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    uvloop.run(works.serve(Limits()))
