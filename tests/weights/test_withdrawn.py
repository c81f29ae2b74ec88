"""A version that was packed and whose publisher was cancelled then is as if it had never been."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlinf_async.weights.links.local_link import LocalLink
from rlinf_async.weights.plane.publisher import Publisher
from rlinf_async.weights.plane.subscriber import Subscriber
from rlinf_async.weights.slots.store import Store

LARGE = 300_000
"""Elements for which a thread is asked."""


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((LARGE,), float(value)), "b": torch.full((7,), float(value))}


def values(held: dict[str, torch.Tensor]) -> list[list[float]]:
    return [sorted(set(tensor.tolist())) for tensor in held.values()]


async def joined(publisher: Publisher, name: int, apply: str) -> tuple[Subscriber, dict[str, torch.Tensor]]:
    to_receiver, to_sender = LocalLink.pair()
    held = weights(0)
    subscriber = Subscriber(to_sender, held, apply=apply)
    publisher.add(name, to_receiver)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(publisher.connect(5))
        tasks.create_task(subscriber.connect(5))
    subscriber.serve()
    return subscriber, held


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Publishes, and is cancelled when everything is packed."""
    pack = Store.pack

    async def publish(publisher: Publisher, source: Any, **options: Any) -> None:
        packed, goes_on = threading.Event(), threading.Event()

        def pack_and_wait(*args: Any, **kwargs: Any) -> Any:
            writer = pack(*args, **kwargs)
            packed.set()
            goes_on.wait(5)
            return writer

        monkeypatch.setattr(Store, "pack", pack_and_wait)
        publishing = asyncio.create_task(publisher.publish(source, **options))
        assert await asyncio.to_thread(packed.wait, 5)
        monkeypatch.setattr(Store, "pack", pack)
        publishing.cancel()
        await asyncio.sleep(0)
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await publishing

    return publish


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_a_late_receiver_gets_what_was_published_and_the_number_is_used_again(
    cancelled: Callable[..., Any], apply: str
) -> None:
    async with Publisher(weights(0), apply=apply) as publisher:
        first, held = await joined(publisher, 0, apply)
        await (await publisher.publish(weights(1)))
        await cancelled(publisher, weights(2))
        assert publisher.version == 1
        late, shown = await joined(publisher, 1, apply)
        assert (late.version, values(shown)) == (1, [[1], [1]])
        report = await (await publisher.publish(weights(3), version=2))
        assert report.version == first.version == late.version == 2
        assert values(held) == values(shown) == [[3], [3]]
        await first.close()
        await late.close()


async def test_what_was_not_published_is_in_no_later_version(cancelled: Callable[..., Any]) -> None:
    async with Publisher(weights(0)) as publisher:
        subscriber, held = await joined(publisher, 0, "copy")
        await cancelled(publisher, weights(9))
        for value in (1, 2):
            await (await publisher.publish(weights(value)))
        await cancelled(publisher, weights(9))
        for value in (3, 4, 5):
            await (await publisher.publish(weights(value), keys=["b"]))
            assert values(held) == [[2], [value]]
        await subscriber.close()
