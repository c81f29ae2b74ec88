"""Worker methods of the data exchange benches in RLinf's API, run by RLinf's workers and by ours alike."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

Samples = list[float]


class Talking:
    """Plain methods, mixed into a ``Worker``."""

    _group_name: str
    _rank: int

    def swap(self, size: int, count: int, way: str, read: bool, device: str) -> Samples:
        """Exchange tensors; rank 0 begins, rank 1 answers. ``way`` is "send", "object" or "in_place"."""
        mine: Any = 1 if way == "object" else ones(size, device)
        theirs = ones(size, device)
        to = (self._group_name, 1 - self._rank)
        worker: Any = self

        def give() -> None:
            if way == "in_place":
                worker.send_tensor(mine, *to)
            else:
                worker.send(mine, *to)

        def take() -> None:
            if way == "in_place":
                worker.recv_tensor(theirs, *to)
                got = theirs
            else:
                got = worker.recv(*to)
            if read:
                got.sum().item()
            elif device != "cpu":
                synchronize()

        steps = (give, take) if self._rank == 0 else (take, give)
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            for step in steps:
                step()
            samples.append(time.perf_counter() - began)
        return samples

    def spread(self, size: int, count: int, receivers: int) -> Samples:
        """Broadcast repeatedly; rank 0 begins again once all others have confirmed the tensor."""
        members = [(self._group_name, list(range(receivers + 1)))]
        worker: Any = self
        instants = []
        if self._rank == 0:
            tensor = ones(size)
            for _ in range(count):
                instants.append(time.perf_counter())
                worker.broadcast(tensor, groups=members)
                for rank in range(1, receivers + 1):
                    worker.recv(self._group_name, rank)
        else:
            for _ in range(count):
                got = worker.broadcast(groups=members)
                instants.append(time.perf_counter())
                del got
                worker.send(1, self._group_name, 0)
        return instants

    def produce(self, channel: Any, count: int, size: int, in_flight: int, keys: int) -> float:
        """Put items; return the time of the first put."""
        item = ones(size) if size else 1
        began = time.perf_counter()
        if in_flight == 1:
            for index in range(count):
                channel.put(item, **key_of(index, keys))
            return began
        works: deque[Any] = deque()
        for index in range(count):
            if len(works) == in_flight:
                works.popleft().wait()
            works.append(channel.put(item, async_op=True, **key_of(index, keys)))
        for work in works:
            work.wait()
        return began

    def consume(self, channel: Any, count: int, in_flight: int, keys: int) -> float:
        """Get items; return the time of the last one."""
        if in_flight == 1:
            for index in range(count):
                channel.get(**key_of(index, keys))
            return time.perf_counter()
        works: deque[Any] = deque()
        for index in range(count):
            if len(works) == in_flight:
                works.popleft().wait()
            works.append(channel.get(async_op=True, **key_of(index, keys)))
        for work in works:
            work.wait()
        return time.perf_counter()


def key_of(index: int, keys: int) -> dict[str, int]:
    """Return the keyword argument for an item's key; empty for the default key."""
    return {"key": index % keys} if keys > 1 else {}


def ones(size: int, device: str = "cpu") -> Any:
    """Return a float32 tensor of this many bytes, written once so that its pages exist."""
    import torch

    return torch.ones(size // 4, device=device)


def synchronize() -> None:
    import torch

    torch.cuda.synchronize()
