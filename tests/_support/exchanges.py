"""Workers that talk to each other, and what the tests have them say."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import time
from collections import namedtuple
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf_async import Worker
from rlinf_async._transports import transport_choice
from rlinf_async._worker import context


class Talker(Worker):
    """Runs whatever the test gives it, with itself as the first argument."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Any] = {}

    def do(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(self, *args)

    async def ado(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        return await function(self, *args)

    def launch_children(self, count: int) -> None:
        from rlinf_async import Cluster, NodePlacementStrategy

        self.children = (
            Talker.create_group()
            .launch(Cluster(), placement=NodePlacementStrategy([self._cluster_node_rank] * count))
            .wait_ready()
        )

    def children_do(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        return self.children.execute_on(rank).do(function, *args).wait()[0]

    def close_children(self) -> None:
        self.children.close()


# -- values ---------------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "left right")


@dataclass
class Step:
    observation: torch.Tensor
    info: dict[str, Any] = field(default_factory=dict)
    parts: tuple[torch.Tensor, ...] = ()


def values() -> dict[str, Any]:
    """One of everything."""
    generator = torch.Generator().manual_seed(7)
    big = torch.randn(300, 1100, generator=generator)
    small = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return {
        "nothing": None,
        "eight bytes": b"12345678",
        "text": "grüße",
        "large bytes": bytes(range(256)) * 8000,
        "empty containers": [[], {}, ()],
        "numbers": {"a": [1, 2.5, True], "b": (3, None)},
        "scalar": torch.tensor(1.5),
        "small": small,
        "empty": torch.empty(0),
        "empty in one dimension": torch.empty(3, 0, 2, dtype=torch.int64),
        "bfloat16": torch.randn(5, 7, generator=generator).to(torch.bfloat16),
        "booleans": torch.tensor([True, False, True]),
        "complex": torch.randn(4, generator=generator, dtype=torch.complex64),
        "big": big,
        "transposed": big.t(),
        "every other": big[:, ::2],
        "one row of much": big[7],
        "list of tensors": [small, big, torch.tensor(3)],
        "tuple of tensors": (small, (big, [small + 1])),
        "dict of tensors": {"x": big, "y": {"z": small.to(torch.float16)}},
        "many small tensors": {f"bias {i}": torch.full((i + 1,), float(i)) for i in range(200)},
        "dataclass": Step(big * 2, {"reward": torch.tensor(0.5), "note": "n"}, (small, small * 3)),
        "named tuple": Pair(small, "right"),
        "array": np.arange(100_000, dtype=np.int32).reshape(100, 1000),
        "requires grad": torch.ones(4, requires_grad=True),
    }


def same(left: Any, right: Any) -> bool:
    """Whether two values are alike in type and content, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        alike = (left.dtype, left.shape, left.device.type) == (right.dtype, right.shape, right.device.type)
        return alike and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and bool(np.array_equal(left, right))
    if is_dataclass(left):
        return all(same(getattr(left, each.name), getattr(right, each.name)) for each in fields(left))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


# -- talks: of rank i of one group with rank i of the other ------------------------------------------------------------


def ask_for_echoes(worker: Any, other: str) -> list[str]:
    """Names of the values that came back changed."""
    wrong = []
    for name, value in values().items():
        assert worker.send(value, other, worker._rank) is None
        if not same(worker.recv(other, worker._rank), value):
            wrong.append(name)
    return wrong


def echo(worker: Any, other: str) -> None:
    for _ in values():
        worker.send(worker.recv(other, worker._rank), other, worker._rank)


async def ask_for_echoes_async(worker: Any, other: str) -> list[str]:
    """All at once."""
    sent = values()
    answers = [worker.recv(other, worker._rank) for _ in sent]
    await asyncio.gather(*(worker.send(value, other, worker._rank) for value in sent.values()))
    return [name for (name, value), answer in zip(sent.items(), answers, strict=True) if not same(await answer, value)]


async def echo_async(worker: Any, other: str) -> None:
    for _ in values():
        await worker.send(await worker.recv(other, worker._rank), other, worker._rank)


def ask_for_echoes_with_async_op(worker: Any, other: str) -> list[str]:
    sent = values()
    sends = [worker.send(value, other, worker._rank, async_op=True) for value in sent.values()]
    answers = [worker.recv(other, worker._rank, async_op=True) for _ in sent]
    for each in sends:
        assert each.wait() is None
    return [name for (name, value), answer in zip(sent.items(), answers, strict=True) if not same(answer.wait(), value)]


def send_tensors(worker: Any, other: str) -> None:
    for shape in ((3, 4), (), (0, 5), (700, 500), (2_000_000,)):
        worker.send_tensor(torch.full(shape, 2.0), other, worker._rank)
    worker.send_tensor(torch.ones(9, dtype=torch.bfloat16), other, worker._rank)


def recv_tensors(worker: Any, other: str) -> list[bool]:
    right = []
    for shape in ((3, 4), (), (0, 5), (700, 500), (2_000_000,)):
        tensor = torch.zeros(shape)
        assert worker.recv_tensor(tensor, other, worker._rank) is None
        right.append(bool((tensor == 2).all()))
    columns = torch.zeros(9, 2, dtype=torch.bfloat16)
    worker.recv_tensor(columns[:, 1], other, worker._rank)
    return [*right, bool((columns[:, 1] == 1).all()) and not columns[:, 0].any()]


def send_with_piggyback(worker: Any, other: str) -> None:
    worker.send("plain", other, worker._rank)
    worker.send(torch.ones(3), other, worker._rank, piggyback_payload={"version": 3})
    worker.send((1, 2), other, worker._rank, piggyback_payload=0)


def recv_three(worker: Any, other: str) -> list[Any]:
    return [worker.recv(other, worker._rank) for _ in range(3)]


def send_one(worker: Any, value: Any, other: str, rank: Any, **options: Any) -> Any:
    return worker.send(value, other, rank, **options)


def send_and_look_at_the_clock(worker: Any, other: str, nbytes: int) -> float:
    worker.send(torch.zeros(nbytes, dtype=torch.uint8), other, worker._rank)
    return time.monotonic()


def recv_one(worker: Any, other: str) -> Any:
    return worker.recv(other, worker._rank)


def recv_size(worker: Any, other: str) -> int:
    return int(worker.recv(other, worker._rank).nbytes)


def compute(worker: Any, seconds: float) -> float:
    """Python and nothing else."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))
    return time.monotonic()


def send_to_both(worker: Any, other: str, paths: list[list[int]]) -> None:
    for path in paths:
        worker.send(torch.ones(3) * 2, other, path)


def recv_from_both(worker: Any, other: str, paths: list[list[int]]) -> list[Any]:
    return [worker.recv(other, path) for path in paths]


def sum_up_from(worker: Any, other: str, rank: int) -> float:
    return float(worker.recv(other, rank).sum())


def talk_to_oneself(worker: Any, group: str) -> bool:
    work = worker.recv(group, worker._rank, async_op=True)
    original = values()
    worker.send(original, group, worker._rank)
    copy = work.wait()
    original["big"].zero_()
    return not same(copy["big"], original["big"]) and same(copy["dataclass"], original["dataclass"])


def both_ways(worker: Any, other: str, mib: int) -> bool:
    """Blocking sends that cross, then the receives."""
    tensor = torch.full((mib << 18,), float(worker._rank))
    worker.send(tensor, other, worker._rank)
    return torch.equal(worker.recv(other, worker._rank), tensor)


async def both_ways_async(worker: Any, other: str, mib: int) -> bool:
    tensor = torch.full((mib << 18,), float(worker._rank))
    _, got = await asyncio.gather(worker.send(tensor, other, worker._rank), worker.recv(other, worker._rank))
    return torch.equal(got, tensor)


async def in_random_orders(worker: Any, groups: list[str], rounds: int) -> int:
    """Everybody sends to everybody and receives from everybody, in an order of its own; the sizes vary."""
    ranks = [(group, rank) for group in groups for rank in range(worker._world_size)]
    chance = random.Random(f"{worker._group_name} {worker._rank}")
    count = 0
    for turn in range(rounds):
        operations = [(sends, group, rank) for group, rank in ranks for sends in (True, False)]
        chance.shuffle(operations)
        size = 400_000 if turn % 20 == 7 else [3, 5_000, 30_000][turn % 3]
        works = []
        for sends, group, rank in operations:
            if sends:
                tensor = torch.full((size,), float(turn * 100 + worker._rank))
                works.append(worker.send(tensor, group, rank))
            else:
                works.append(_check(worker.recv(group, rank), turn * 100 + rank))
        count += len(await asyncio.gather(*works))
    return count


def refused(function: Callable[[], Any]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


async def awaited(work: Any) -> Any:
    return await work


async def _check(work: Any, expected: float) -> None:
    tensor = await work
    assert bool((tensor == expected).all()), (tensor, expected)


# -- many at once ------------------------------------------------------------------------------------------------------


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


async def wait_for_a_thousand(worker: Any, other: str, peers: int, each: int) -> tuple[int, bool]:
    """Threads that are added by so many pending receives, and whether each got its own message."""
    await asyncio.gather(*(worker.send("hello", other, rank) for rank in range(peers)))
    before = threads()
    works = [(rank, number, worker.recv(other, rank)) for number in range(each) for rank in range(peers)]
    tasks = [asyncio.create_task(awaited(work)) for _, _, work in works]
    await asyncio.sleep(0)
    added = threads() - before
    await asyncio.gather(*(worker.send("go", other, rank) for rank in range(peers)))
    got = await asyncio.gather(*tasks)
    return added, all(value == (rank, number) for (rank, number, _), value in zip(works, got, strict=True))


def send_many(worker: Any, other: str, count: int) -> None:
    worker.recv(other, 0)
    worker.recv(other, 0)
    for number in range(count):
        worker.send((worker._rank, number), other, 0)


def links_that_were_made(worker: Any) -> list[str]:
    """To whomever this worker has talked."""
    exchange = context.exchange
    assert exchange is not None
    return sorted({name for peer in exchange._mailbox.peers._peers.values() for name in peer.links})


# -- the node ----------------------------------------------------------------------------------------------------------


def send_only_by_the_daemons(worker: Any) -> None:
    """No connections between workers of different nodes."""
    table = transport_choice.TRANSPORTS
    table["gloo"] = table["gloo"]._replace(min_bytes=math.inf)


def segments(pids: Iterable[int]) -> dict[int, int]:
    """The shared memory that these processes have open or mapped: bytes, by inode."""
    found: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has just ended, or is none of ours
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if "memfd:rlinf" in line:
                    extent, _, _, _, inode, *_ = line.split()
                    begin, end = (int(address, 16) for address in extent.split("-"))
                    found[int(inode)] = max(found.get(int(inode), 0), end - begin)
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if "memfd:rlinf" in os.readlink(entry):
                        status = entry.stat()
                        found[status.st_ino] = max(found.get(status.st_ino, 0), status.st_size)
    return found


def everybody() -> list[int]:
    """All processes of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


# -- broadcast ---------------------------------------------------------------------------------------------------------


def broadcast_in_turns(worker: Any, groups: list[tuple[str, Any]], sources: list[tuple[str, Any]]) -> bool:
    """Every source in its turn gives something; whether everybody got it."""
    right = True
    for turn, source in enumerate(sources):
        mine = source[0] == worker._group_name and source[1] == worker._rank
        value = {"turn": turn, "x": torch.full((turn * 40_000 + 1,), float(turn))}
        given = value if mine else None
        got = worker.broadcast(given, groups, source)
        right = right and same(got, value) and (not mine or got is given)
    return right


async def broadcast_with_sends_between(worker: Any, groups: list[tuple[str, Any]], size: int) -> list[float]:
    """Ten at once, and messages between the members meanwhile."""
    name, ranks = groups[0]
    first = name == worker._group_name and worker._rank == ranks[0]
    works = [worker.broadcast(torch.full((size,), float(i)) if first else None, groups) for i in range(10)]
    me = worker._group_name, worker._rank
    await worker.send("aside", *me)
    assert await worker.recv(*me) == "aside"
    return [float(value[0]) for value in await asyncio.gather(*works)]


def broadcast_alone(worker: Any) -> Any:
    return worker.broadcast("alone", [(worker._group_name, worker._rank)])


def broadcasts_that_are_wrong(worker: Any, other: str) -> list[str]:
    group = worker._group_name
    return [
        refused(lambda: worker.broadcast(1)),
        refused(lambda: worker.broadcast(1, [])),
        refused(lambda: worker.broadcast(1, {group: 0})),
        refused(lambda: worker.broadcast(1, [group])),
        refused(lambda: worker.broadcast(1, [(group, 0.5)])),
        refused(lambda: worker.broadcast(1, [(other, [0, 1])])),
        refused(lambda: worker.broadcast(1, [(group, [0, 1])], src=(other, 0))),
    ]
