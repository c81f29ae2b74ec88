"""Turns of applying: changes while a version waits are seen before it is written."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from rlinf_async import MultiProcessWeightSyncScheme
from rlinf_async.errors import ClosedError
from rlinf_async.weights import Publisher, Subscriber
from tests._support.weight_parts import Leases, LocalLink
from tests.weights.pairs import pair

LARGE = 400_000
"""Elements that are looked at in a thread."""


def weights(value: float, size: int = 5) -> dict[str, torch.Tensor]:
    return {"w": torch.full((size,), value)}


def shown(held: Mapping[str, torch.Tensor]) -> set[float]:
    return set(held["w"].tolist())


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_a_version_that_still_waits_for_readers_when_all_is_closed_does_not_count(apply: str) -> None:
    destination = weights(0.0)
    async with pair(weights(0.0), destination, apply=apply, serves=False) as (publisher, (subscriber,)):
        for value in (1.0, 2.0):
            handle = await publisher.publish(weights(value))
            if value == 1.0:
                await subscriber.wait_version(1, 20)
                await handle
        async with asyncio.timeout(20):
            async with subscriber.reading():
                receiving = asyncio.create_task(subscriber.receive(20))
                while not subscriber.gate._waiting:
                    await asyncio.sleep(0)
                await subscriber.close()
            with pytest.raises(ClosedError, match="closed"):
                await receiving
        assert (subscriber.version, shown(destination)) == (1, {1.0})
        handle.cancel()


async def test_memory_is_not_given_back_while_somebody_writes_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small version is written in the thread of whoever receives it."""
    order: list[str] = []
    writes, is_given_back = threading.Event(), threading.Event()
    close = Leases.close

    def apply(views: Any) -> None:
        writes.set()
        is_given_back.wait(0.2)
        order.append(f"written {float(views['w',].max())}")

    def give_back(leases: Leases) -> None:
        order.append("given back")
        is_given_back.set()
        close(leases)

    monkeypatch.setattr(Leases, "close", give_back)
    async with pair(weights(0.0), apply, serves=False) as (publisher, (subscriber,)):
        (await publisher.publish(weights(1.0))).cancel()
        receiving = threading.Thread(target=asyncio.run, args=(subscriber.receive(20),))
        receiving.start()
        try:
            assert await asyncio.to_thread(writes.wait, 20)
            await subscriber.close()
        finally:
            is_given_back.set()
            await asyncio.to_thread(receiving.join, 20)
        assert subscriber.version == 1
    assert order == ["written 1.0", "given back"]


# -- a reader that is there when all is closed -------------------------------------------------------------------------


class Reader:
    """A thread that reads until it is told to leave."""

    def __init__(self, subscriber: Any) -> None:
        self._subscriber = subscriber
        self._is_inside, self._leaves = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        with self._subscriber.reading():
            self._is_inside.set()
            self._leaves.wait(20)

    async def __aenter__(self) -> Reader:
        self._thread.start()
        assert await asyncio.to_thread(self._is_inside.wait, 20)
        return self

    async def leave(self) -> None:
        self._leaves.set()
        await asyncio.to_thread(self._thread.join, 20)

    async def __aexit__(self, *exc_info: object) -> None:
        await self.leave()


async def test_mapped_memory_is_given_back_once_readers_have_left() -> None:
    """A kernel of another thread that reads it would end the process (SIGSEGV)."""
    destination = weights(0.0)
    async with pair(weights(0.0), destination, apply="map") as (publisher, (subscriber,)):
        await (await publisher.publish(weights(1.0)))
        standing = destination["w"].data_ptr()
        async with Reader(subscriber) as reader:
            closing = asyncio.create_task(subscriber.close())
            while subscriber.link.error is None or not (closing.done() or subscriber.gate._waiting):
                await asyncio.sleep(0)
            assert (closing.done(), destination["w"].data_ptr()) == (False, standing)
            await reader.leave()
            await asyncio.wait_for(closing, 5)
    assert destination["w"].data_ptr() != standing
    assert shown(destination) == {1.0}


@pytest.mark.parametrize("how", ["late", "cancelled"])
async def test_memory_that_a_reader_does_not_leave_stays_as_it_is(how: str) -> None:
    destination = weights(0.0)
    options: dict[str, Any] = {"apply": "map", "ack_timeout": 0.05 if how == "late" else 20.0}
    async with pair(weights(0.0), destination, **options) as (publisher, (subscriber,)):
        await (await publisher.publish(weights(1.0), timeout=20))
        standing = destination["w"].data_ptr()
        async with Reader(subscriber):
            closing = asyncio.create_task(subscriber.close())
            if how == "cancelled":
                while not subscriber.gate._waiting:
                    await asyncio.sleep(0)
                closing.cancel()
            await asyncio.wait([closing], timeout=5)
            assert (closing.done(), closing.cancelled()) == (True, how == "cancelled")
            assert repr(subscriber._applying.leases) == "<Leases of 0 slots>"
            for value in (2.0, 3.0, 4.0, 5.0):
                await (await publisher.publish(weights(value), []))
            assert (destination["w"].data_ptr(), shown(destination)) == (standing, {1.0})


async def test_who_closes_inside_a_reading_block_of_its_own_is_not_waited_for() -> None:
    destination = weights(0.0)
    async with pair(weights(0.0), destination, apply="map") as (publisher, (subscriber,)):
        await (await publisher.publish(weights(1.0)))
        async with subscriber.reading():
            await asyncio.wait_for(subscriber.close(), 5)
    assert shown(destination) == {1.0}


def test_plain_code_closes_inside_a_reading_block_of_its_own() -> None:
    source, destination = weights(1.0), weights(0.0)
    ours, theirs = multiprocessing.Pipe()
    sending, receiving = (MultiProcessWeightSyncScheme(apply="map") for _ in range(2))
    with ours, theirs:
        sending.init_on_sender("policy", pipes=[ours], source_model=source)
        receiving.init_on_worker("policy", pipe=theirs, model=destination)
        connecting = threading.Thread(target=receiving.connect)
        connecting.start()
        sending.connect()
        connecting.join(20)
        begun = time.monotonic()
        with receiving.get_receiver().reading():
            receiving.close()
        assert time.monotonic() - begun < 20
        sending.close()
    assert shown(destination) == {1.0}


async def test_a_receiver_that_is_dropped_inside_a_reading_block_keeps_the_memory_that_is_read() -> None:
    destination = weights(0.0)
    async with Publisher(weights(1.0)) as publisher:
        to_receiver, to_sender = LocalLink.pair()
        publisher.add(0, to_receiver)
        subscriber = Subscriber(to_sender, destination, apply="map")
        handle = await publisher.publish()
        await subscriber.wait_version(1, 5)
        await handle
    standing, reading = destination["w"].data_ptr(), subscriber.reading()
    with reading:
        del subscriber, publisher, to_receiver, to_sender, handle
        gc.collect()
        assert destination["w"].data_ptr() == standing
    del reading
    gc.collect()
    assert destination["w"].data_ptr() != standing
    assert shown(destination) == {1.0}
