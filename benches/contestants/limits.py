"""The machine's own limits as a contestant: forks, sockets, memory and GPU copies, timers, TCP, Gloo, gRPC."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import wires
import works

MESSAGE = b"x" * 64
SPREAD = 256 << 20
"""Bytes over which small copies are spread."""

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
    """Measurements of the same form as the frameworks'."""

    def __init__(self, place: wires.Place) -> None:
        self._place = place
        self._echoes: list[socket.socket] = []
        self._arrays: tuple[Any, Any] | None = None
        self._spread: tuple[Any, Any] | None = None
        self._wires: dict[str, wires.Near] = {}
        self._grpc: Any = None

    async def import_torch(self) -> works.Samples:
        """Measure one ``import torch`` in a bare interpreter."""
        return [float(_python(IMPORT))]

    async def forks(self, count: int) -> works.Samples:
        """Measure forks of a process that has imported torch, until each has sent a byte."""
        return [float(_python(FORKS, str(count)))]

    async def echo(self, count: int, processes: int, size: int = len(MESSAGE)) -> works.Samples:
        """Measure a message to each of several processes over UNIX sockets, and their answers."""
        sockets = self._echo_sockets(processes)
        message = bytes(size)
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            for sock in sockets:
                sock.sendall(message)
            for sock in sockets:
                sock.recv(size, socket.MSG_WAITALL)
            samples.append(time.perf_counter() - began)
        return samples

    async def echo_pipelined(self, count: int, processes: int) -> works.Samples:
        """Return echoed messages per second, with up to sixty-four in flight to each process and one write for each."""
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
        """Measure one copy of warm memory by one thread."""
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

    async def copy(self, size: int, count: int, read: bool = False) -> works.Samples:
        """Return the bytes per second of one thread's copies between uncached places, which are then read."""
        import numpy as np

        total = max(size, SPREAD)
        if self._spread is None or self._spread[0].nbytes != total:
            source = np.ones(total // 4, dtype=np.float32)
            self._spread = source, source.copy()
        source, target = (array.reshape(-1, size // 4) for array in self._spread)
        samples = []
        for index in range(count):
            row = index % len(source)
            began = time.perf_counter()
            np.copyto(target[row], source[row])
            if read:
                target[row].sum()
            samples.append(size / (time.perf_counter() - began))
        return samples

    async def copies(self, size: int, processes: int, count: int) -> dict[str, works.Samples]:
        """Return the seconds of one copy: by one process ``alone``, by all ``together``, and by memmove."""
        script = str(Path(__file__).with_name("memory.py"))
        found: dict[str, works.Samples] = json.loads(_run(sys.executable, script, *map(str, (size, processes, count))))
        return found

    async def device_copy(self, size: int, count: int) -> works.Samples:
        """Return the bytes per second of copies within a GPU's memory."""
        import torch

        source = torch.ones(size // 4, device="cuda")
        target = torch.empty_like(source)
        samples = []
        for _ in range(count):
            torch.cuda.synchronize()
            began = time.perf_counter()
            target.copy_(source)
            torch.cuda.synchronize()
            samples.append(size / (time.perf_counter() - began))
        return samples

    async def gpu_copy(self, way: str, size: int, times: int, count: int) -> works.Samples:
        """Return the seconds of GPU copies to pinned memory (``"d2h"``), back (``"h2d"``), or within it (``"d2d"``)."""
        import torch

        source = torch.ones(size // 4, device="cuda" if way != "h2d" else "cpu", pin_memory=way == "h2d")
        target = torch.zeros(size // 4, device="cuda" if way != "d2h" else "cpu", pin_memory=way == "d2h")
        samples = []
        for index in range(count + 1):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(times):
                target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            if index:  # the first copy touches new memory
                samples.append(time.perf_counter() - began)
        return samples

    async def gpus(self) -> works.Samples:
        """Return the number of GPUs."""
        import torch

        return [float(torch.cuda.device_count())]

    async def queue(self, count: int, pairs: int, in_flight: int) -> works.Samples:
        """Return the items per second through a bare queue over UNIX sockets."""
        script = str(Path(__file__).with_name("bare_queue.py"))
        return [float(_run(sys.executable, script, str(count), str(pairs), str(in_flight)))]

    async def late(self, count: int) -> works.Samples:
        """Return the 99th percentile of the lateness of an idle asyncio loop's timers, in seconds."""
        delays = await asyncio.to_thread(asyncio.run, works.ticks(count))
        return [works.p99(delays)]

    async def wire(self, kind: str, size: int, count: int) -> works.Samples:
        """Return the seconds of a round trip with this many bytes each way; ``kind`` is "tcp" or "gloo"."""
        if kind not in self._wires:
            self._wires[kind] = await asyncio.to_thread(wires.open_pair, kind, self._place)
        return await asyncio.to_thread(wires.swap, self._wires[kind], size, count)

    async def wire_bandwidth(self, kind: str, size: int, count: int) -> works.Samples:
        """Return the bytes per second in one direction, with both directions in turn."""
        return [2 * size / taken for taken in await self.wire(kind, size, count)]

    async def gloo_broadcast(self, size: int, count: int) -> works.Samples:
        """Return the seconds of a broadcast to one other process, until that has the data."""
        if "gloo" not in self._wires:
            self._wires["gloo"] = await asyncio.to_thread(wires.open_pair, "gloo", self._place)
        return await asyncio.to_thread(wires.spread, self._wires["gloo"], size, count)

    async def grpc_echo(self, count: int) -> works.Samples:
        """Measure a message over a bidirectional grpc.aio stream without TLS, and its answer."""
        stream = await self._grpc_stream()
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            await stream.write(MESSAGE)
            await stream.read()
            samples.append(time.perf_counter() - began)
        return samples

    async def grpc_echo_rate(self, count: int) -> works.Samples:
        """Return the messages per second over that stream, one by one."""
        return [count / sum(await self.grpc_echo(count))]

    async def grpc_echo_pipelined(self, count: int) -> works.Samples:
        """Return the messages per second over that stream, written without waiting for answers."""
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
        for near in self._wires.values():
            near.close()
        if self._grpc is not None:
            await self._grpc[0].close()
        return []


def _python(code: str, *args: str) -> str:
    return _run(sys.executable, "-c", code, *args)


def _run(*command: str) -> str:
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
    uvloop.run(works.serve(Limits(wires.Place.of(sys.argv[1:]))))
