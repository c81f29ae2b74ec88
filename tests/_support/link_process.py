"""A process with links to others, for ``tests/_support/link_processes.py``: obeys what comes over a socket, in msgpack.

Run as ``python -m tests._support.link_process ADDRESS=FD …``: imports torch once, then forks a process per socket.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

import msgpack
import torch

from rlinf_async._transports.devices.cuda_ipc import CudaIpcLink
from rlinf_async._transports.devices.nccl_link import NcclLink
from rlinf_async._transports.devices.staging import StagedLink
from rlinf_async._transports.gloo_link import GlooLink

_PR_SET_PDEATHSIG = 1


def pattern(number: int, nbytes: int) -> torch.Tensor:
    period = torch.arange(251, dtype=torch.uint8) + number % 256
    return period.repeat(nbytes // 251 + 1)[:nbytes]


def make_link(kind: str, post: Any, first: bool, address: str, device: torch.device) -> Any:
    match kind:
        case "staged":
            return StagedLink(post, first, address, device)
        case "nccl":
            return NcclLink(post, first, address, device)
        case "cuda_ipc":
            return CudaIpcLink(post, first, address, device)
    return GlooLink(post, first, address)


class Peer:
    def __init__(self, control: socket.socket, address: str, ordinal: int) -> None:
        self.control, self.address, self.ordinal = control, address, ordinal
        self.device: torch.device | None = None
        self.links: dict[str, Any] = {}
        self.lock = threading.Lock()
        self.tasks: set[asyncio.Task[None]] = set()

    def say(self, *message: Any) -> None:
        with self.lock:
            self.control.sendall(msgpack.packb(message))

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self.control.dup())
        unpacker = msgpack.Unpacker()
        while data := await reader.read(1 << 16):
            unpacker.feed(data)
            for message in unpacker:
                self.obey(*message)
        writer.close()

    def obey(self, order: str, *rest: Any) -> None:
        match order, *rest:
            case "link", peer, first, kind:
                device = torch.device("cpu")
                if kind != "gloo":
                    device = self.device = torch.device("cuda", self.ordinal % torch.cuda.device_count())
                post = functools.partial(self.say, "facts", peer)
                self.links[peer] = make_link(kind, post, first, self.address, device)
            case "facts", peer, facts:
                self.links[peer].on_control(facts)
            case "send", ticket, peer, number, nbytes:
                tensor = pattern(number, nbytes)
                buffer = tensor.to(self.device) if self.device else memoryview(tensor.numpy())
                self.follow(ticket, self.links[peer].send(number, [buffer]), None)
            case "receive", ticket, peer, number, nbytes:
                self.follow(ticket, self.links[peer].receive(number, [nbytes]), number)
            case "discard", peer, text:
                self.links[peer].discard(TimeoutError(text))
            case "count", ticket:
                self.say("done", ticket, [len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))], "")

    def follow(self, ticket: int, work: Any, number: int | None) -> None:
        task = asyncio.get_running_loop().create_task(self.wait(ticket, work, number))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def wait(self, ticket: int, work: Any, number: int | None) -> None:
        began = time.monotonic()
        try:
            got = await work
            if number is not None:
                tensor = got[0] if self.device else torch.frombuffer(got[0], dtype=torch.uint8)
                assert tensor.device == (self.device or torch.device("cpu"))
                assert torch.equal(tensor.cpu(), pattern(number, len(tensor))), "what has arrived is not what was sent"
        except Exception as error:
            self.say("done", ticket, None, f"{type(error).__name__}: {error}")
        else:
            self.say("done", ticket, time.monotonic() - began, "")


def main() -> None:
    torch.set_num_threads(1)
    assigned = [argument.split("=") for argument in sys.argv[1:]]
    for ordinal, (address, number) in enumerate(assigned):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            for _, other in assigned:
                if other != number:
                    os.close(int(other))
            control = socket.socket(fileno=int(number))
            peer = Peer(control, address, ordinal)
            peer.say("born", os.getpid())
            asyncio.run(peer.run())
            os._exit(0)
    for _, number in assigned:
        os.close(int(number))
    for _ in assigned:
        os.wait()


if __name__ == "__main__":
    main()
