"""Files of the framework that one warm operation enters, a bound for each that only falls."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch

import rlinf_async
from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker
from rlinf_async._worker import context

pytestmark = pytest.mark.shared_cluster

PACKAGE = rlinf_async.__path__[0]
WARM = 5
TRIES = 20
"""Operations that are looked at: a timer or an acknowledgement belongs to some of them, and not to the operation."""

Operation = Callable[[], Awaitable[Any]]


class Entered(set[str]):
    """Files of the functions that a thread has called."""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and (name := frame.f_code.co_filename).startswith(PACKAGE):
            self.add(name.removeprefix(PACKAGE))

    async def during(self, operation: Operation) -> None:
        sys.setprofile(self)
        try:
            await operation()
        finally:
            sys.setprofile(None)


class Party(Worker):
    """One side of an operation, whose thread of sockets is looked at, too."""

    async def do(self, what: str) -> set[str]:
        operation: Operation = getattr(self, f"_{what}")
        entered, loop = Entered(), context.require_client().loop
        loop.call_soon_threadsafe(sys.setprofile, entered)
        await entered.during(operation)
        loop.call_soon_threadsafe(sys.setprofile, None)
        return set(entered)

    async def _send(self) -> None:
        await self.send(torch.ones(100_000), "parties", 1)

    async def _recv(self) -> None:
        await self.recv("parties", 0)

    async def meet(self, channel: Channel) -> None:
        self.channel = channel

    async def _put(self) -> None:
        await self.channel.put(1)

    async def _get(self) -> None:
        await self.channel.get()


@pytest.fixture(scope="module")
def parties() -> Iterator[Any]:
    with (
        Cluster(num_nodes=1, log_to_driver=False) as cluster,
        Party.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0]), name="parties") as group,
    ):
        yield group


async def test_a_warm_group_call(parties: Any) -> None:
    async def call() -> set[str]:
        entered = Entered()
        await asyncio.create_task(entered.during(lambda: parties.meet(None)))
        return set(entered)

    entered = min([await call() for _ in range(WARM + TRIES)], key=len)
    assert len(entered) <= 16, "\n".join(sorted(entered))


@pytest.mark.parametrize(
    ("near", "far", "bound"), [pytest.param("send", "recv", 28, id="tensor"), pytest.param("put", "get", 22, id="item")]
)
async def test_what_goes_from_one_worker_to_another(parties: Any, near: str, far: str, bound: int) -> None:
    await parties.meet(Channel.create(f"entered {near}"))
    found: list[set[str]] = []
    for _ in range(WARM + TRIES):
        (sent,), (received,) = await asyncio.gather(parties[0].do(near), parties[1].do(far))
        found.append(sent | received)
    entered = min(found, key=len)
    assert len(entered) <= bound, "\n".join(sorted(entered))
