"""Hosts of other machines, and senders, that end or leave before their memory is opened."""

from __future__ import annotations

import asyncio

import pytest

from rlinf_async.errors import PeerLost, TransferFailed
from rlinf_async.weights import Publisher, Subscriber
from tests._support.weight_parts import LocalLink, MemoryGone, SlotReader, messages
from tests.weights.ends import Tied
from tests.weights.far_links import FarLink


async def test_who_was_told_of_a_hosts_memory_that_is_gone_gets_it_once_more() -> None:
    source, models, links = Tied(1.0), [Tied(), Tied()], [FarLink.far_pair() for _ in range(2)]
    async with (
        Publisher(source) as publisher,
        Subscriber(links[0][1], models[0]) as host,
        Subscriber(links[1][1], models[1]) as other,
    ):
        for number, (to_receiver, _) in enumerate(links):
            publisher.add(number, to_receiver)
        await asyncio.gather(publisher.connect(5), host.connect(5), other.connect(5))
        host.serve()
        handle = await publisher.publish(source)
        await host.wait_version(1, 5)
        await host.close()  # the other one has been told of its memory, and has not looked
        other.serve()
        report = await handle
        assert report.per_worker[1].status == "applied"
        assert models[1].values() == {1.0}


async def test_memory_that_can_never_be_opened_is_asked_for_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    source, asked = Tied(1.0), []

    def refuse(reader: SlotReader, *_: object) -> None:
        asked.append(reader)
        raise MemoryGone("the sender's memory cannot be opened: Permission denied")

    to_receiver, to_sender = LocalLink.pair()
    async with Publisher(source) as publisher, Subscriber(to_sender, Tied()) as subscriber:
        publisher.add(0, to_receiver)
        await asyncio.gather(publisher.connect(5), subscriber.connect(5))
        subscriber.serve()
        monkeypatch.setattr(SlotReader, "__init__", refuse)
        with pytest.raises(TransferFailed, match="Permission denied"):
            await (await publisher.publish(source, timeout=5))
        assert len(asked) == 4


async def test_memory_that_is_gone_is_asked_for_under_the_latest_version(monkeypatch: pytest.MonkeyPatch) -> None:
    source, needed = Tied(1.0), []

    def refuse(reader: SlotReader, *_: object) -> None:
        raise MemoryGone("the sender's memory cannot be opened: Permission denied")

    to_receiver, to_sender = LocalLink.pair()
    async with Publisher(source, behind=2) as publisher, Subscriber(to_sender, Tied()) as subscriber:
        publisher.add(0, to_receiver)
        await asyncio.gather(publisher.connect(5), subscriber.connect(5))
        for _ in range(2):
            await publisher.publish(source)
        monkeypatch.setattr(SlotReader, "__init__", refuse)
        monkeypatch.setattr(subscriber, "_send", lambda *words: needed.append(words[:2]))
        assert not await subscriber.receive(0.01)
    assert needed == [(messages.NEED, 2)]


async def test_memory_that_went_with_its_sender_is_told_as_its_end() -> None:
    source = Tied(1.0)
    to_receiver, to_sender = LocalLink.pair()
    async with Subscriber(to_sender, Tied()) as subscriber:
        async with Publisher(source) as publisher:
            publisher.add(0, to_receiver)
            await asyncio.gather(publisher.connect(5), subscriber.connect(5))
            await publisher.publish(source)  # the receiver has been told of its memory, and has not looked
        with pytest.raises(PeerLost, match="has closed its end of the link"):
            await subscriber.wait_version(1, 5)
        assert subscriber.version == 0
