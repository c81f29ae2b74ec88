"""Weights read on the publisher's own GPU, with a stand-in for CUDA."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

from rlinf_async.errors import DeadlineExceeded, PeerLost
from rlinf_async.weights import Publisher, Subscriber
from rlinf_async.weights.memory import slot
from rlinf_async.weights.memory.device_leaves import free_retired
from tests._support.fake_gpus import GPU, FakeGpus
from tests._support.socket_links import inviting, joining
from tests._support.weight_parts import IN_SLOT, ON_GPU, LocalLink
from tests.weights.children import child
from tests.weights.pairs import pair
from tests.weights.pipe_child import model, values_of

Weights = dict[str, torch.Tensor]


@pytest.fixture
def gpus() -> FakeGpus:
    return FakeGpus()


async def publish(publisher: Publisher, source: Weights, value: float, **options: Any) -> None:
    """Publishes one value everywhere, which is gone from the source as soon as it is staged."""
    for tensor in source.values():
        tensor.fill_(value)
    handle = await publisher.publish(source, **options)
    for tensor in source.values():
        tensor.fill_(-1)
    await handle


def places(publisher: Publisher) -> int:
    """Where the latest version is."""
    store = publisher._store
    assert store is not None
    assert store.latest is not None
    return store.latest._header.places & (IN_SLOT | ON_GPU)


def host_memory(publisher: Publisher) -> list[int]:
    """Bytes that each slot takes of it."""
    store = publisher._store
    assert store is not None
    return [os.stat(slot.name.path).st_blocks * 512 for slot in store._slots]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@contextlib.asynccontextmanager
async def joined(publisher: Publisher, name: str, destination: Weights, **options: Any) -> AsyncIterator[Subscriber]:
    """A late receiver, which has been connected and serves."""
    to_receiver, to_sender = LocalLink.pair()
    publisher.add(name, to_receiver)
    async with Subscriber(to_sender, destination, **options) as subscriber:
        await subscriber.connect(5)
        subscriber.serve()
        yield subscriber


# -- what stays there -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("apply", "slots"), [("copy", 2), ("map", 3)])
async def test_weights_of_one_gpu_never_leave_it_and_its_memory_is_exported_and_opened_once(
    gpus: FakeGpus, apply: str, slots: int
) -> None:
    source, destination = gpus.put(model(0)), gpus.put(model(0))
    async with pair(source, destination, gpus=gpus, apply=apply) as (publisher, (subscriber,)):
        for version in range(1, 8):
            await publish(publisher, source, version)
            async with subscriber.reading() as read:
                assert (read, values_of(destination)) == (version, {version})
            assert places(publisher) == ON_GPU
        copies = [way for way, _ in gpus.done("copy")]
        assert copies == ["D2D"] * (7 if apply == "map" else 14)
        assert gpus.done("copy")[0][1] == {GPU: "mark"}, "what the caller has begun comes first"
        assert [len(gpus.done(what)) for what in ("allocate", "export", "open")] == [slots] * 3
        assert len(gpus.done("settle")) == (7 if apply == "map" else 0)
        stands_there = {tensor.untyped_storage().data_ptr() for tensor in destination.values()}
        assert (len(stands_there) == 1) is (apply == "map")
        assert gpus.registered == {}
    assert values_of(destination) == {7}, "closing leaves the last version"
    destination["a"].fill_(9)
    free_retired()
    assert (gpus.room, set(gpus.opened.values())) == ({}, {0})


async def test_a_kept_snapshot_on_a_gpu_stays_and_its_memory_is_open_until_it_is_dropped(gpus: FakeGpus) -> None:
    source, destination = gpus.put(model(0)), gpus.put(model(0))
    async with pair(source, destination, gpus=gpus, apply="map") as (publisher, _):
        await publish(publisher, source, 1)
        kept = [tensor.detach() for tensor in destination.values()]
        for version in range(2, 8):
            await publish(publisher, source, version)
            assert values_of(destination) == {version}
            assert {float(bound) for tensor in kept for bound in torch.aminmax(tensor)} == {1}
    assert free_retired() == 1
    assert {float(bound) for tensor in kept for bound in torch.aminmax(tensor)} == {1}, "its sender has closed"
    kept.clear()
    assert (free_retired(), gpus.room, set(gpus.opened.values())) == (0, {}, {0})


@pytest.mark.parametrize("is_kept", [False, True])
async def test_memory_on_a_gpu_is_freed_where_no_descriptor_is_left(
    gpus: FakeGpus, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    source, destination = gpus.put(model(0)), gpus.put(model(0))
    async with pair(source, destination, gpus=gpus, apply="map") as (publisher, _):
        await publish(publisher, source, 1)
        kept = [tensor.detach() for tensor in destination.values()] if is_kept else []
        monkeypatch.setattr(os, "dup", refuse)
    kept.clear()
    assert (free_retired(), gpus.room, set(gpus.opened.values())) == (0, {}, {0})


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_weights_that_stay_on_a_gpu_take_no_memory_of_the_host_before_a_receiver_elsewhere_needs_it(
    gpus: FakeGpus, apply: str
) -> None:
    source, there, here = gpus.put(model(0, 20)), gpus.put(model(0, 20)), model(0, 20)
    nbytes = sum(tensor.nbytes for tensor in source.values())
    async with pair(source, there, gpus=gpus, apply=apply) as (publisher, (subscriber,)):
        for version in range(1, 8):
            await publish(publisher, source, version)
        assert max(host_memory(publisher)) < nbytes / 2
        assert not any(reader.is_registered for reader in subscriber._applying.leases._known.values())
        async with joined(publisher, "late", here, gpus=gpus, apply=apply) as late:
            assert (late.version, values_of(here)) == (7, {7})
            assert [taken > nbytes for taken in host_memory(publisher)].count(True) == 1
            for version in range(8, 11):
                await publish(publisher, source, version)
                assert (values_of(there), values_of(here)) == ({version}, {version})


async def test_no_memory_of_the_host_is_an_error_as_long_as_a_receiver_needs_it(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, there, here = gpus.put(model(0)), gpus.put(model(0)), model(0)
    async with pair(source, there, gpus=gpus) as (publisher, _):
        await publish(publisher, source, 1)
        monkeypatch.setattr(slot, "available", lambda: 0)
        to_receiver, to_sender = LocalLink.pair()
        publisher.add("late", to_receiver)
        async with Subscriber(to_sender, here, gpus=gpus) as late:
            with pytest.raises(DeadlineExceeded):
                await late.connect(0.2)
            with pytest.raises(MemoryError, match="take one slot of"):
                await publish(publisher, source, 2)
            publisher.remove("late")
        await publish(publisher, source, 3)
        assert (values_of(there), values_of(here)) == ({3}, {0})
        monkeypatch.undo()
        async with joined(publisher, "again", here, gpus=gpus):
            assert values_of(here) == {3}


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_what_a_receiver_reads_is_not_written_and_nobody_waits_for_it(gpus: FakeGpus, apply: str) -> None:
    source, first, other = gpus.put(model(0)), gpus.put(model(0)), gpus.put(model(0))
    async with (
        pair(source, first, gpus=gpus, apply=apply) as (publisher, (slow,)),
        joined(publisher, "other", other, gpus=gpus, apply=apply),
    ):
        await publish(publisher, source, 1)
        async with slow.reading():
            for version in range(2, 7):
                await publish(publisher, source, version, worker_ids=["other"])
                assert (values_of(first), values_of(other)) == ({1}, {version})
        await publish(publisher, source, 7)
        assert (values_of(first), values_of(other)) == ({7}, {7})


async def test_a_receiver_of_the_cpu_beside_one_of_the_gpu_has_every_version_too(gpus: FakeGpus) -> None:
    source, there, here = gpus.put(model(0)), gpus.put(model(0)), model(0)
    async with pair(source, there, here, gpus=gpus) as (publisher, _):
        for version in range(1, 4):
            await publish(publisher, source, version)
            assert (values_of(there), values_of(here)) == ({version}, {version})
            assert places(publisher) == ON_GPU | IN_SLOT
        assert sorted({way for way, _ in gpus.done("copy")}) == ["D2D", "D2H"]
        publisher.remove(1)
        await publish(publisher, source, 4)
        assert places(publisher) == ON_GPU


async def test_a_late_receiver_of_the_cpu_starts_with_the_version_that_was_on_the_gpu_only(gpus: FakeGpus) -> None:
    source, there, here = gpus.put(model(0)), gpus.put(model(0)), model(0)
    async with pair(source, there, gpus=gpus) as (publisher, _):
        await publish(publisher, source, 1)
        await publish(publisher, source, 2)
        assert places(publisher) == ON_GPU
        async with joined(publisher, "late", here, gpus=gpus) as late:
            assert (late.version, values_of(here)) == (2, {2})
            await publish(publisher, source, 3)
            assert (values_of(there), values_of(here)) == ({3}, {3})


async def test_a_receiver_on_another_gpu_reads_in_the_memory_of_the_cpu(gpus: FakeGpus) -> None:
    other = FakeGpus(name="another GPU")
    source, destination = gpus.put(model(0)), other.put(model(0))
    async with pair(source, gpus=gpus) as (publisher, _), joined(publisher, "it", destination, gpus=other):
        await publish(publisher, source, 1)
        assert values_of(destination) == {1}
        assert places(publisher) == IN_SLOT
        assert other.done("open") == []


# -- what CUDA refuses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_a_receiver_that_cannot_open_the_memory_says_so_once_and_misses_no_version(
    apply: str, caplog: pytest.LogCaptureFixture
) -> None:
    gpus, theirs = FakeGpus(), FakeGpus("open")
    source, destination = gpus.put(model(0)), theirs.put(model(0))
    async with (
        pair(source, gpus=gpus, apply=apply) as (publisher, _),
        joined(publisher, "it", destination, gpus=theirs, apply=apply) as it,
    ):
        for version in range(1, 6):
            await publish(publisher, source, version)
            assert (it.version, values_of(destination)) == (version, {version})
        assert len(theirs.done("open")) == 1
        assert places(publisher) == IN_SLOT, "nobody reads it there"
    told = ["the memory of the sender's GPU cannot be opened; its weights come by way of the CPU: open is refused"]
    if apply == "map":
        told.append("weights are copied to cuda:0 and not mapped: the sender has them elsewhere")
    assert warnings(caplog) == told


@pytest.mark.parametrize("refused", ["allocate", "export"])
@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_a_sender_that_cannot_share_its_memory_says_so_once_and_goes_by_way_of_the_cpu(
    refused: str, apply: str, caplog: pytest.LogCaptureFixture
) -> None:
    gpus = FakeGpus(refused)
    source, destination = gpus.put(model(0)), gpus.put(model(0))
    async with pair(source, destination, gpus=gpus, apply=apply) as (publisher, _):
        for version in range(1, 6):
            await publish(publisher, source, version)
            assert values_of(destination) == {version}
        assert gpus.room == {}
        assert len(gpus.done(refused)) == 1
    told = f"weights of 'policy' go by way of the CPU, not of cuda:0: {refused} is refused"
    assert warnings(caplog)[0] == told
    assert len(warnings(caplog)) == (2 if apply == "map" else 1)


async def test_a_gpu_that_has_room_for_some_of_the_versions_only_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gpus = FakeGpus(limit=1)
    source, destination = gpus.put(model(0)), gpus.put(model(0))
    async with pair(source, destination, gpus=gpus) as (publisher, _):
        for version in range(1, 4):
            await publish(publisher, source, version)
            assert (values_of(destination), places(publisher)) == ({version}, IN_SLOT)
            assert gpus.room == {}
    assert warnings(caplog) == ["weights of 'policy' go by way of the CPU, not of cuda:0: there is no memory left"]


async def test_weights_that_were_mapped_on_the_gpu_are_copied_into_memory_of_their_own_when_they_come_elsewhere(
    gpus: FakeGpus,
) -> None:
    source, destination = gpus.put(model(0)), gpus.put(model(0))
    async with pair(source, destination, gpus=gpus, apply="map") as (publisher, (subscriber,)):
        await publish(publisher, source, 1)
        assert subscriber._applying.leases.keeps_one
        for version in (2, 3, 4, 5):
            publisher._receivers._receivers[0].gpu = ""
            await publish(publisher, source, version)
            assert values_of(destination) == {version}
            assert len({tensor.untyped_storage().data_ptr() for tensor in destination.values()}) == len(destination)
            assert not subscriber._applying.leases.keeps_one
        publisher._receivers._receivers[0].gpu = "one GPU"
        for version in (6, 7, 8, 9):
            await publish(publisher, source, version)
            assert values_of(destination) == {version}
    assert values_of(destination) == {9}


async def test_a_mapped_model_that_was_moved_off_the_gpu_gets_its_weights_where_it_is_in_a_thread(
    gpus: FakeGpus,
) -> None:
    source, destination = gpus.put(model(0)), gpus.put(model(0))
    async with pair(source, destination, gpus=gpus, apply="map") as (publisher, (subscriber,)):
        await publish(publisher, source, 1)
        for tensor in destination.values():
            tensor.data = tensor.data.clone()  # as .to("cpu")
        applying = subscriber._applying
        assert applying.leases.manifest is not None
        applying.destination.check(applying.leases.manifest)  # the stand-in's devices do not change
        gpus.calls.clear()
        await publish(publisher, source, 2)
        assert [way for way, _ in gpus.done("copy")] == ["D2D", "D2H"]
        assert (gpus.places(destination.values()), values_of(destination)) == (set(), {2})


async def test_a_gpu_that_does_not_give_a_version_is_an_error_of_those_that_need_it_elsewhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gpus, theirs = FakeGpus(), FakeGpus("open")
    source, destination = gpus.put(model(0)), theirs.put(model(0))
    async with (
        pair(source, gpus=gpus) as (publisher, _),
        joined(publisher, "it", destination, gpus=theirs),
    ):
        store_fill = publisher._store.fill  # type: ignore[union-attr]
        publisher._store.fill = lambda: gpus._do("fill")  # type: ignore[union-attr,method-assign]
        gpus.refuses.add("fill")
        with pytest.raises(RuntimeError, match="fill is refused"):
            await publish(publisher, source, 1)
        assert values_of(destination) == {0}
        publisher._store.fill = store_fill  # type: ignore[union-attr,method-assign]
        await publish(publisher, source, 2)
        assert values_of(destination) == {2}
    assert "could not be got from its GPU" in caplog.text


@pytest.mark.parametrize("serves", [True, False])
@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_a_receiver_gives_back_what_it_has_open_when_it_hears_that_the_sender_is_gone(
    gpus: FakeGpus, apply: str, serves: bool
) -> None:
    source, destination = gpus.put(model(0)), gpus.put(model(0))
    to_receiver, to_sender = LocalLink.pair()
    publisher = Publisher(source, gpus=gpus, apply=apply)
    publisher.add("it", to_receiver)
    async with Subscriber(to_sender, destination, gpus=gpus, apply=apply) as subscriber:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publisher.connect(5))
            tasks.create_task(subscriber.connect(5))
        server = subscriber.serve()
        for version in range(1, 4):
            await publish(publisher, source, version)
        if not serves:
            server.cancel()
            await asyncio.wait([server])
        await publisher.close()
        if serves:
            await asyncio.wait([server])
        else:
            with pytest.raises(PeerLost):
                await subscriber.wait_version(9, 10)
        assert set(gpus.opened.values()) == {0}
        assert subscriber._applying.leases._known == {}
        free_retired()
        assert gpus.room == {}, "it is the sender's again, before the receiver is closed"
        assert values_of(destination) == {3}


# -- between processes ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_readers_on_the_gpu_in_other_processes_never_see_two_versions(gpus: FakeGpus, apply: str) -> None:
    source = gpus.put(model(0))
    async with contextlib.AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(child("read", apply=apply, gpu=gpu)) for gpu in (True, True, False)]
        publisher = await stack.enter_async_context(Publisher(source, apply=apply, gpus=gpus))
        for number, reader in enumerate(readers):
            publisher.add(number, inviting(reader.pipe, f"pid {reader.pid}"))
        await publisher.connect(60)
        for version in range(1, 61):
            await publish(publisher, source, version)
        await publisher.close()
        for reader in readers:
            assert await reader.word() == "connected"
            story = await reader.story()
            assert story["torn"] == []
            assert (story["last"], story["after"]) == (60, [60])
            assert await reader.ended() == 0
    free_retired()
    assert gpus.room == {}


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_memory_that_a_stopped_receiver_has_open_stays_until_it_is_gone(
    gpus: FakeGpus, how: signal.Signals
) -> None:
    source = gpus.put(model(0))
    async with child("read", apply="map", gpu=True) as bad:
        async with Publisher(source, gpus=gpus, slots=2) as publisher:
            publisher.add("bad", inviting(bad.pipe, f"pid {bad.pid}"))
            await publisher.connect(60)
            for version in (1, 2, 3):
                await publish(publisher, source, version)
            bad.signal(signal.SIGSTOP)
            for version in (4, 5, 6, 7):
                await publish(publisher, source, version, worker_ids=[])
            assert len(gpus.room) == 3, "two slots, and what the stopped one looks at"
            assert free_retired() == 1
            if how == signal.SIGKILL:
                bad.signal(how)
                await bad.ended()
                await publish(publisher, source, 8, worker_ids=[])
                assert len(gpus.room) == 2
        assert len(gpus.room) == (0 if how == signal.SIGKILL else 2)
    free_retired()
    assert gpus.room == {}


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_a_receiver_whose_sender_is_killed_has_its_last_whole_version_in_memory_of_its_own(
    gpus: FakeGpus, apply: str
) -> None:
    weights = gpus.put(model(0))
    async with (
        child("send", scale=1, gpu=True, apply=apply) as sender,
        Subscriber(joining(sender.pipe), weights, gpus=gpus, apply=apply) as subscriber,
    ):
        await subscriber.connect()
        await subscriber.wait_version(3, 60)
        assert gpus.done("open")
        sender.signal(signal.SIGKILL)
        with pytest.raises(PeerLost):
            await subscriber.wait_version(1 << 40, 30)
        async with subscriber.reading() as version:
            assert values_of(weights) == {version}
        assert len({tensor.untyped_storage().data_ptr() for tensor in weights.values()}) == len(weights)
