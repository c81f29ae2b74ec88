"""Shared-memory weights between processes: torn reads, deaths, latecomers, leaks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

import pytest

from rlinf_async.errors import DeadlineExceeded, PeerLost, WeightMismatch
from rlinf_async.weights import Publisher, Subscriber
from tests._support.socket_links import inviting, joining
from tests.weights.children import Child, child
from tests.weights.pipe_child import model, values_of

pytestmark = pytest.mark.usefixtures("fork_server")

STRESS = float(os.environ.get("RLINF_STRESS_SECONDS", "3"))
"""Seconds of the stress test."""


async def connected(publisher: Publisher, *children: Child) -> None:
    for number, each in enumerate(children):
        publisher.add(number, inviting(each.pipe, f"pid {each.pid}"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(publisher.connect(60))
        for each in children:
            tasks.create_task(each.word())


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_no_reader_ever_sees_two_versions_and_versions_never_go_back(apply: str) -> None:
    """Sends without a pause while readers look at every leaf; the source changes right after it is staged."""
    async with contextlib.AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(child("read", apply=apply)) for _ in range(4)]
        source = model(0)
        publisher = await stack.enter_async_context(Publisher(source, apply=apply))
        await connected(publisher, *readers)
        end, version = time.monotonic() + STRESS, 0
        while time.monotonic() < end:
            version += 1
            for tensor in source.values():
                tensor.fill_(version)
            handle = await publisher.publish(source)
            for tensor in source.values():
                tensor.fill_(-1)
            report = await handle
            assert {ack.version for ack in report.per_worker.values()} == {version}
        await publisher.close()
        for reader in readers:
            story = await reader.story()
            assert story["torn"] == []
            assert (story["last"], story["after"]) == (version, [version])
            assert story["seen"] > 3
            assert await reader.ended() == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_receiver_that_fails_half_way_is_named_and_the_others_have_the_version(how: signal.Signals) -> None:
    async with child("hang", at=2) as bad, child("read", apply="copy") as good, Publisher(model(0)) as publisher:
        await connected(publisher, bad, good)
        await (await publisher.publish(model(1)))
        assert await bad.word() == "applied [1.0]"
        handle = await publisher.publish(model(2), timeout=3)
        assert await bad.word() == "half way"
        bad.signal(how)
        begun = time.monotonic()
        with pytest.raises(PeerLost if how == signal.SIGKILL else DeadlineExceeded) as raised:
            await handle
        assert time.monotonic() - begun < 4
        assert f"pid {bad.pid}" in str(raised.value)
        assert "worker 0 does not have version 2" in str(raised.value.__notes__)
        assert handle.report is not None
        assert {name: ack.status for name, ack in handle.report.per_worker.items()} == {0: "failed", 1: "applied"}
        assert list(publisher.quarantined) == [0]
        for version in (3, 4, 5):  # the slot that the failed one reads holds up nobody
            handle = await publisher.publish(model(version), [1], timeout=10)
            assert (await handle).per_worker[1].version == version
        await publisher.close()
        assert (await good.story())["after"] == [5]


async def test_a_receiver_that_was_stopped_is_whole_again_with_its_next_version() -> None:
    async with child("hang", at=2, goes_on=True) as slow, Publisher(model(0)) as publisher:
        await connected(publisher, slow)
        await (await publisher.publish(model(1)))
        assert await slow.word() == "applied [1.0]"
        handle = await publisher.publish(model(2), timeout=0.3)
        assert await slow.word() == "half way"
        slow.signal(signal.SIGSTOP)
        with pytest.raises(DeadlineExceeded):
            await handle
        for version in (3, 4):
            with pytest.raises(DeadlineExceeded):
                await (await publisher.publish(model(version), timeout=0.1))
        slow.signal(signal.SIGCONT)
        handle = await publisher.publish(model(5), timeout=20)
        slow.tell("go on")
        assert await slow.word() == "applied [2.0]", "what it was reading was not overwritten"
        assert (await handle).per_worker[0].version == 5
        while (word := await slow.word()) != "applied [5.0]":
            assert word == "applied [4.0]"
        assert publisher.quarantined == {}


async def test_a_receiver_that_was_killed_is_replaced_by_a_late_one_which_gets_the_latest_version() -> None:
    late, source = child("read", apply="map"), model(0)
    async with child("read", apply="copy") as first, late as second, Publisher(source) as publisher:
        await connected(publisher, first)
        await (await publisher.publish(model(1)))
        first.signal(signal.SIGKILL)
        await first.ended()
        with pytest.raises(PeerLost):
            await (await publisher.publish(model(2), timeout=10))
        publisher.add(0, inviting(second.pipe))
        await publisher.connect(60)
        assert await second.word() == "connected"
        assert publisher.quarantined == {}
        await publisher.close()
        assert (await second.story())["after"] == [2]


async def test_when_the_sender_is_killed_the_last_whole_version_stays() -> None:
    weights = model(0, 30)
    async with child("send", scale=30) as sender, Subscriber(joining(sender.pipe), weights) as subscriber:
        await subscriber.connect()
        await subscriber.wait_version(3, 60)
        sender.signal(signal.SIGKILL)
        with pytest.raises(PeerLost):
            await subscriber.wait_version(1 << 40, 30)
        async with subscriber.reading() as version:
            assert values_of(weights) == {version}
        with pytest.raises(PeerLost):
            await subscriber.wait_version(version + 1, 30)


async def test_what_a_killed_sender_left_half_written_is_no_version() -> None:
    weights = model(0)
    async with child("send_once") as sender, Subscriber(joining(sender.pipe), weights) as subscriber:
        await subscriber.connect()
        await subscriber.wait_version(1, 30)
        assert await sender.word() == "half way"
        sender.signal(signal.SIGKILL)
        with pytest.raises(PeerLost):
            await subscriber.receive(30)
        assert values_of(weights) == {1.0}


async def test_other_weights_are_refused_on_both_sides_before_anything_is_written() -> None:
    other = model(0)
    other["b"] = other["b"].view(40, 300).contiguous()
    async with child("hang", at=0) as receiver, child("send", scale=1) as sender:
        async with Subscriber(joining(sender.pipe), other) as subscriber:
            with pytest.raises(
                WeightMismatch, match=r"'b' has shape \[40, 300\] in the destination and \[300, 40\] in the weights"
            ):
                await subscriber.connect(60)
            assert values_of(other) == {0.0}
        async with Publisher(model(0)) as publisher:
            await connected(publisher, receiver)
            with pytest.raises(WeightMismatch, match=r"'b' has become .* shape \(40, 300\)"):
                await publisher.publish(other)
            await (await publisher.publish(model(1)))
            assert await receiver.word() == "applied [1.0]"
