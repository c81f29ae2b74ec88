"""Turns of applying: changes while a version waits are seen before it is written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from rlinf_async.errors import ClosedError
from tests._support.weight_parts import Leases
from tests.weights.pairs import pair

LARGE = 400_000
"""Elements that are looked at in a thread."""


def weights(value: float, size: int = 5) -> dict[str, torch.Tensor]:
    return {"w": torch.full((size,), value)}


def shown(held: Mapping[str, torch.Tensor]) -> set[float]:
    return set(held["w"].tolist())


async def test_a_version_that_has_been_overtaken_while_it_was_looked_at_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    destination = weights(0.0, LARGE)
    async with pair(weights(0.0, LARGE), destination) as (publisher, (subscriber,)):
        await (await publisher.publish(weights(1.0, LARGE)))
        compare, looks, goes_on = subscriber._applying.destination.compare, threading.Event(), threading.Event()

        def slow(views: Any, extra: Any) -> None:
            compare(views, extra)
            looks.set()
            goes_on.wait(20)

        monkeypatch.setattr(subscriber._applying.destination, "compare", slow)
        handle = await publisher.publish(weights(2.0, LARGE))
        try:
            assert await asyncio.to_thread(looks.wait, 20)
            assert await subscriber.accept(lambda: destination["w"].fill_(7.0), 7)
        finally:
            goes_on.set()
        assert (await handle).per_worker[0].status == "applied"
        async with subscriber.reading() as version:
            assert (version, shown(destination)) == (7, {7.0})


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
