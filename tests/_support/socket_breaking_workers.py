"""Workers that run out of descriptors, and whose sockets to others of their node break while both ends live."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from rlinf_async import Channel, Worker, WorkerGroup
from rlinf_async._client.client import NodeClient
from rlinf_async._worker import context

WAYS_TO_BREAK = ("close", "shutdown", "garbage")


def direct_sockets(client: NodeClient) -> list[int]:
    """The descriptors of a process's sockets to others of its node."""
    tables = [client.direct_sockets, *([client.own_direct_sockets] if client.own_direct_sockets is not None else [])]
    ways = [way for table in tables for way in table.connections.values() if way is not None]
    return [way.fileno() for way in ways if not way.is_closed]


def break_sockets(client: NodeClient, how: str) -> int:
    """Breaks each of them as code that knows nothing of them could; how many there were."""
    found = direct_sockets(client)
    for fd in found:
        with contextlib.suppress(OSError):  # the other side has broken it already
            if how == "close":
                os.close(fd)
                continue
            with socket.socket(fileno=os.dup(fd)) as sock:
                if how == "shutdown":
                    sock.shutdown(socket.SHUT_RDWR)
                else:
                    sock.setblocking(True)
                    sock.send(b"\xc1" * 8)  # a byte that msgpack never uses
    return len(found)


def take_all_descriptors() -> list[int]:
    """Opens files until no more can be opened; the limit is lowered, so that these are few."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return taken


def give_back(taken: list[int]) -> None:
    for fd in taken:
        os.close(fd)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Breaking(Worker):
    """One of two ranks that talk to each other and to their driver."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []
        self.log: list[int] = []

    # -- what breaks --------------------------------------------------------------------------------------------

    async def exhaust(self) -> int:
        self.taken = take_all_descriptors()
        return len(self.taken)

    async def relieve(self) -> None:
        give_back(self.taken)
        self.taken = []

    async def break_sockets(self, how: str) -> int:
        assert context.client is not None
        return break_sockets(context.client, how)

    async def break_sockets_after(self, seconds: float, how: str) -> int:
        await asyncio.sleep(seconds)
        return await self.break_sockets(how)

    def close_sockets_and_compute(self, seconds: float) -> None:
        """Neither thread hears of a descriptor that is closed under it."""
        assert context.client is not None
        break_sockets(context.client, "close")
        time.sleep(seconds)

    # -- messages -----------------------------------------------------------------------------------------------

    async def send_numbers(self, other: str, rank: int, count: int, nbytes: int, pause: float = 0.0) -> None:
        for number in range(count):
            await self.send(np.full(nbytes // 8, number, dtype=np.int64), other, rank)
            await asyncio.sleep(pause)

    async def recv_numbers(self, other: str, rank: int, count: int) -> list[int]:
        received = []
        for _ in range(count):
            array = await self.recv(other, rank)
            assert (array == array[0]).all()
            received.append(int(array[0]))
        return received

    # -- calls --------------------------------------------------------------------------------------------------

    def note(self, number: int) -> int:
        self.log.append(number)
        return number

    def noted(self) -> list[int]:
        return self.log

    def double(self, array: np.ndarray) -> np.ndarray:
        return array * 2

    def total(self, array: np.ndarray) -> int:
        return int(array.sum())

    async def sleep(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def count(self, most: int, pause: float) -> AsyncIterator[int]:
        for number in range(most):
            yield number
            await asyncio.sleep(pause)

    async def wait_for_cancel(self) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.log.append(-1)
            raise

    async def call_other(self, name: str, rank: int, count: int, how: str) -> list[Any]:
        """Calls another worker many times, and breaks the sockets in the middle of it."""
        group = (await WorkerGroup.from_group_name(Breaking, name))[rank]
        await group.note(0)
        handles = [group.note(number) for number in range(1, count)]
        slow = group.sleep(0.1)
        assert await self.break_sockets(how)
        handles += [group.note(number) for number in range(count, 2 * count)]
        values = [(await handle)[0] for handle in handles]
        assert await slow == [0.1]
        return values

    # -- channels -----------------------------------------------------------------------------------------------

    async def get_numbers(self, channel: Channel, count: int) -> list[int]:
        return [int((await channel.get())[0]) for _ in range(count)]
