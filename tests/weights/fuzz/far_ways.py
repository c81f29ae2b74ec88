"""Ways over the other links: pipes with shared memory, calls, and a torch store.

Calls and stores keep one pair of ends for all examples, whose worker is given another model before each; a link whose
sender tells its receivers once what comes has a pair for each example.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it

from rlinf_async import (
    DistributedWeightSyncScheme,
    MultiProcessWeightSyncScheme,
    SharedMemWeightSyncScheme,
    WorkerWeightSyncScheme,
)
from rlinf_async.errors import RemoteError
from tests.weights.ends import Host
from tests.weights.fuzz.runners import DEADLINE_S, Deliver, Way


class Worker:
    """Context of a receiver: has the model of the example that is run."""

    policy: Any = None
    store: Any = None
    rank = 1


Living: TypeAlias = Callable[[], AbstractAsyncContextManager[Way]]


async def _send(sending: Any, receiving: Any, source: Any) -> None:
    """Sends and takes once; of what is refused, the receiver's own error is raised."""
    sent = sending.get_sender().send(source, timeout=DEADLINE_S)
    taking = asyncio.create_task(_take(receiving.get_receiver()))
    try:
        await sent
        await taking
    except Exception as error:
        if not isinstance(error, RemoteError):
            taking.cancel()  # nothing was sent, or the receiver has answered
        await asyncio.wait([taking])
        if not taking.cancelled() and (own := taking.exception()) is not None:
            raise own from None
        raise


async def _take(receiver: Any) -> None:
    while not await receiver.receive(DEADLINE_S):
        pass


@contextlib.asynccontextmanager
async def _of_pipes(kind: Any) -> AsyncIterator[Way]:
    @contextlib.asynccontextmanager
    async def way(source: Any, destination: Any, maps: bool) -> AsyncIterator[Deliver]:
        ours, theirs = multiprocessing.Pipe()
        with ours, theirs:
            sending, receiving = (kind(apply="map" if maps else "copy") for _ in range(2))
            sending.init_on_sender("policy", pipes=[ours])
            receiving.init_on_worker("policy", pipe=theirs, model=destination)
            try:
                yield lambda: _send(sending, receiving, source)
            finally:
                await sending.close()
                await receiving.close()

    yield Way(way)


@contextlib.asynccontextmanager
async def _of_calls() -> AsyncIterator[Way]:
    sending, receiving = WorkerWeightSyncScheme(), WorkerWeightSyncScheme()
    receiving.init_on_worker("policy")
    sending.init_on_sender("policy", remote_collectors=[Host(receiving.get_receiver())])

    @contextlib.asynccontextmanager
    async def way(source: Any, destination: Any, maps: bool) -> AsyncIterator[Deliver]:
        async def deliver() -> None:
            await sending.get_sender().send(source, timeout=DEADLINE_S)

        receiving.get_receiver()._register_model(destination)
        yield deliver

    try:
        yield Way(way, maps=False)
    finally:
        await sending.close()
        await receiving.close()


@contextlib.asynccontextmanager
async def _of_a_store(maps: bool) -> AsyncIterator[Way]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    worker = Worker()
    sending, receiving = (DistributedWeightSyncScheme(apply="map" if maps else "copy") for _ in range(2))
    worker.store = store
    sending.init_on_sender("policy", store=store, num_workers=1)
    receiving.init_on_worker("policy", context=worker)

    @contextlib.asynccontextmanager
    async def way(source: Any, destination: Any, maps: bool) -> AsyncIterator[Deliver]:
        worker.policy = destination
        yield lambda: _send(sending, receiving, source)

    try:
        yield Way(way, maps)
    finally:
        await sending.close()
        await receiving.close()


FAR: dict[str, Living] = {
    "pipe": lambda: _of_pipes(MultiProcessWeightSyncScheme),
    "shared memory": lambda: _of_pipes(SharedMemWeightSyncScheme),
    "call": _of_calls,
    "store, copy": lambda: _of_a_store(maps=False),
    "store, map": lambda: _of_a_store(maps=True),
}
"""Ways over links between processes, by name."""
