"""Versions that are published while earlier ones are under way, to receivers that are slow, stopped or gone."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
import torch

from rlinf_async.errors import DeadlineExceeded, WeightMismatch
from rlinf_async.weights.plane.publisher import Publisher
from rlinf_async.weights.plane.verifying import Verifying
from tests._support.fake_gpus import FakeGpus
from tests.weights.pairs import pair

BOTH = pytest.mark.parametrize("apply", ["copy", "map"])


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((1000,), value)}


async def publish(publisher: Publisher, value: float) -> Any:
    return await publisher.publish(weights(value))


def slots(publisher: Publisher) -> list[Any]:
    assert publisher._store is not None
    return publisher._store._slots


@BOTH
async def test_a_reader_that_stays_stops_neither_the_sender_nor_the_others(
    apply: str, caplog: pytest.LogCaptureFixture
) -> None:
    slow, quick = weights(0.0), weights(0.0)
    async with pair(weights(0.0), slow, quick, apply=apply, behind=2) as (publisher, (reader, other)):
        handles = [await publish(publisher, 1.0)]
        await handles[0]
        with caplog.at_level(logging.WARNING, "rlinf_async"):
            async with reader.reading() as version:
                for number in range(2, 8):
                    handles.append(await publish(publisher, float(number)))
                    await other.wait_version(number, 5)
                assert (version, set(slow["w"].tolist())) == (1, {1.0})
                for number, handle in enumerate(handles[1:-3], start=2):
                    lacks = rf"receiver 0 \(.*\) is more than 2 versions of 'policy' behind: .* it lacks {number}"
                    with pytest.raises(DeadlineExceeded, match=lacks):
                        await handle
                    assert handle.report.per_worker[1].status == "applied"
                assert [handle.done() for handle in handles[-3:]] == [False] * 3
            reports = [await handle for handle in handles[-3:]]
        assert [report.per_worker[0].status for report in reports] == ["applied"] * 3, "it has a later one"
        assert (reader.version, set(slow["w"].tolist())) == (7, {7.0}), "it has skipped the rest"
        named = [record for record in caplog.records if "is more than 2 versions" in record.message]
        assert len(named) == 1, "it is named once"


@BOTH
@pytest.mark.parametrize("is_damaged", [False, True])
async def test_a_version_that_is_not_the_latest_is_verified(apply: str, is_damaged: bool) -> None:
    options: dict[str, Any] = {"apply": apply, "verify": "sha256", "behind": 2, "serves": False}
    async with pair(weights(0.0), weights(0.0), **options) as (publisher, (subscriber,)):
        handle = await publish(publisher, 1.0)
        answers: list[Any] = []
        publisher._receivers._verify = lambda *facts: answers.append(facts)
        assert await subscriber.receive(1)
        await publish(publisher, 2.0)
        ((receiver, ack, (version, forms, found)),) = answers
        publisher._verify_in_thread(receiver, ack, (version, forms, bytes(len(found)) if is_damaged else found))
        if is_damaged:
            with pytest.raises(WeightMismatch, match="'w' of version 1 is not what was sent"):
                await handle
        else:
            assert (await handle).per_worker[0].digest


async def test_a_version_is_pinned_for_its_comparison_before_the_next_is_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, pin, pinned = threading.Event(), Verifying.pin, []

    def pin_late(self: Verifying, version: int) -> None:
        assert gate.wait(5)
        pin(self, version)
        pinned.append(sorted(self._held))

    monkeypatch.setattr(Verifying, "pin", pin_late)
    async with pair(weights(0.0), weights(0.0), verify="sha256", behind=2, serves=False) as (publisher, _):
        await publish(publisher, 1.0)
        second = asyncio.ensure_future(publish(publisher, 2.0))
        for _ in range(20):
            await asyncio.sleep(0)
        gate.set()
        await second
        await publisher.worker_thread.wait()
        assert pinned == [[1], [1, 2]]


async def test_what_is_packed_and_not_published_is_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot of a version that was announced is written again, and that is taken back."""
    destination = weights(0.0)
    async with pair(weights(0.0), destination, behind=2, serves=False) as (publisher, (subscriber,)):
        for number in (1, 2):
            await publish(publisher, float(number))
        one, two = subscriber._inbox.popleft(), subscriber._inbox.popleft()
        subscriber._inbox.append(one)
        store = publisher._store
        assert store is not None
        store.most = 2
        store.pack(store.take(), 3, list(weights(-1.0).values()))
        assert not await subscriber.receive(0.01), "version 1 was written again"
        store.withdraw(3)
        subscriber._inbox.append(two)
        assert await subscriber.receive(1)
        assert (subscriber.version, set(destination["w"].tolist())) == (2, {2.0})


async def test_a_receiver_that_never_answers_is_told_of_no_more_than_it_can_keep() -> None:
    async with pair(weights(0.0), weights(0.0), behind=2, serves=False) as (publisher, (stopped,)):
        for number in range(1, 100):
            await publish(publisher, float(number))
        assert len(stopped._inbox) == 64
        await stopped.wait_version(99, 5)
        assert stopped.staleness == 0


@pytest.mark.parametrize("is_mixed", [False, True])
async def test_weights_on_a_gpu_take_memory_of_the_cpu_slot_by_slot(is_mixed: bool) -> None:
    gpus, source = FakeGpus(), {"a": torch.ones(1000), "b": torch.ones(10)}
    gpus.put({"a": source["a"]} if is_mixed else source)
    async with Publisher(source, behind=2, gpus=gpus) as publisher:
        await publisher.publish(source)
        assert [slot._leaves is not None for slot in slots(publisher)] == [True, False]
