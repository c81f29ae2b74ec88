"""Workers that send over a network that seems to be large."""

from __future__ import annotations

import time
from typing import Any

import torch

from rlinf_async import Channel, Worker


class Sender(Worker):
    async def send_some(self, dst: str, number: int, nbytes: int) -> None:
        works = [self.send((each, torch.zeros(nbytes, dtype=torch.uint8)), dst, 0) for each in range(number)]
        for work in works:
            await work

    async def recv_some(self, src: str, number: int, rank: int = 0) -> list[int]:
        return [(await self.recv(src, rank))[0] for _ in range(number)]

    async def send_to_both(self, first: str, second: str) -> list[str]:
        """Who was sent to, in the order in which that was done."""
        order: list[str] = []
        works = [self.send((0, None), name, 0).then(order.append, name) for name in (first, second)]
        for work in works:
            await work
        return order

    def send_tensor_once(self, dst: str) -> float:
        began = time.monotonic()
        self.send_tensor(torch.ones(4), dst, 0)
        return time.monotonic() - began

    def recv_tensor_once(self, src: str) -> None:
        self.recv_tensor(torch.empty(4), src, 0)

    async def send_in_time(self, dst: str, timeout: float) -> str:
        try:
            await self.send((99, None), dst, 0, timeout=timeout)
        except Exception as error:
            return type(error).__name__
        return ""

    async def broadcast_from(self, members: list[tuple[str, int]], src: str) -> Any:
        return await self.broadcast(self._group_name, members, (src, 0))

    def put_some(self, channel: Channel, number: int) -> float:
        began = time.monotonic()
        works = [channel.put(each, async_op=True) for each in range(number)]
        for work in works:
            work.wait()
        return time.monotonic() - began

    def get_in_time(self, channel: Channel, timeout: float) -> Any:
        return channel.get(timeout=timeout)
