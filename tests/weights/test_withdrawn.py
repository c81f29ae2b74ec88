"""Withdrawn versions: packed and cancelled ones leave no trace."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlinf_async import MultiProcessWeightSyncScheme
from rlinf_async._core.failures import pack_error
from rlinf_async._messaging.state.relay_plan import BRING, LANDED, ROOM, WHOLE
from rlinf_async.errors import ClosedError, WeightMismatch
from rlinf_async.weights import MPTransport, Publisher, Subscriber
from rlinf_async.work import Work
from tests._support.fake_gpus import FakeGpus
from tests._support.recording_listener import Ear
from tests._support.weight_parts import LocalLink, ReceiverTable, Store, SyncHandle, messages as say
from tests.weights.far_links import FarLink as FarLinks
from tests.weights.pairs import pair

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
def packed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Publishes: within the context everything is packed, and nothing is published; after it, the task is done."""
    pack = Store.pack

    @contextlib.asynccontextmanager
    async def publish(publisher: Any, source: Any, **options: Any) -> AsyncIterator[asyncio.Task[SyncHandle]]:
        packed, goes_on = threading.Event(), threading.Event()

        def pack_and_wait(*args: Any, **kwargs: Any) -> Any:
            writer = pack(*args, **kwargs)
            packed.set()
            goes_on.wait(5)
            return writer

        monkeypatch.setattr(Store, "pack", pack_and_wait)
        publishing = asyncio.ensure_future(publisher.publish(source, **options))
        assert await asyncio.to_thread(packed.wait, 5)
        monkeypatch.setattr(Store, "pack", pack)
        try:
            yield publishing
        finally:
            await asyncio.sleep(0)
            goes_on.set()
            await asyncio.wait([publishing])

    return publish


@pytest.fixture
def cancelled(packed: Callable[..., Any]) -> Callable[..., Any]:
    """Publishes, and is cancelled when everything is packed; what happens before is said."""

    async def publish(publisher: Publisher, source: Any, meanwhile: Callable[[], Any] | None = None) -> None:
        async with packed(publisher, source) as publishing:
            if meanwhile is not None:
                meanwhile()
            publishing.cancel()
        assert publishing.cancelled()

    return publish


# -- who comes when everything is packed ----------------------------------------------------------------------------


def added(publisher: Publisher, name: int, apply: str = "copy") -> tuple[Subscriber, dict[str, torch.Tensor]]:
    """A receiver whose link is there and which has not connected yet."""
    to_receiver, to_sender = LocalLink.pair()
    held = weights(0)
    publisher.add(name, to_receiver)
    return Subscriber(to_sender, held, apply=apply), held


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_who_comes_when_all_is_packed_hears_of_what_is_published_and_not_of_what_is_withdrawn(
    cancelled: Callable[..., Any], apply: str
) -> None:
    came: list[tuple[Subscriber, dict[str, torch.Tensor]]] = []
    async with Publisher(weights(0), apply=apply) as publisher:
        first, held = await joined(publisher, 0, apply)
        await (await publisher.publish(weights(1)))
        await cancelled(publisher, weights(9), lambda: came.append(added(publisher, 1, apply)))
        ((late, shown),) = came
        await late.connect(5)
        assert (late.version, values(shown)) == (1, [[1], [1]])
        late.serve()
        report = await (await publisher.publish(weights(3), version=2))
        assert {name: ack.status for name, ack in report.per_worker.items()} == {0: "applied", 1: "applied"}
        assert first.version == late.version == 2
        assert values(held) == values(shown) == [[3], [3]]
        await first.close()
        await late.close()


async def test_the_first_version_when_it_is_withdrawn_was_heard_of_by_nobody(cancelled: Callable[..., Any]) -> None:
    to_receiver, to_sender = LocalLink.pair()
    ear = Ear()
    to_sender.listen(ear)
    async with Publisher(weights(0)) as publisher:
        await publisher.connect(5)
        await cancelled(publisher, weights(9), lambda: publisher.add(0, to_receiver))
        assert [(words[0], *words[-2:]) for words in ear.words] == [(say.HELLO, None, 0)]
    to_sender.close()


async def test_who_comes_when_all_is_packed_gets_it_once_it_is_published(packed: Callable[..., Any]) -> None:
    async with Publisher(weights(0)) as publisher:
        first, _ = await joined(publisher, 0, "copy")
        async with packed(publisher, weights(1)) as publishing:
            late, shown = added(publisher, 1)
        await late.connect(5)
        assert (late.version, values(shown)) == (1, [[1], [1]])
        assert set((await publishing.result()).per_worker) == {0}
        await first.close()
        await late.close()


async def test_who_takes_what_it_has_refused_hears_of_what_is_published_and_not_of_what_is_withdrawn(
    cancelled: Callable[..., Any],
) -> None:
    to_receiver, to_sender = LocalLink.pair()
    ear = Ear()
    to_sender.listen(ear)
    async with Publisher(weights(0)) as publisher:
        publisher.add(0, to_receiver)
        handle = await publisher.publish(weights(1))
        to_sender.send([say.ACK, 1, pack_error(WeightMismatch("not yet")), "", 0.0, 0.0, 0.0, None])
        with pytest.raises(WeightMismatch):
            await handle
        await cancelled(publisher, weights(9), publisher._receivers.ask_again)
        ear.until(lambda: any(words[0] == say.PUBLISH and words[2] is not None for words in ear.words))
        assert ear.words[-1][:2] == [say.PUBLISH, 1]
    to_sender.close()


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_what_is_only_on_a_gpu_is_fetched_for_who_comes_once_it_is_known_what_is_published(
    packed: Callable[..., Any], is_cancelled: bool
) -> None:
    gpus = FakeGpus()
    source = gpus.put(weights(0))
    async with pair(source, gpus.put(weights(0)), gpus=gpus) as (publisher, _):
        source["a"].fill_(1)
        await (await publisher.publish(source))
        gpus.calls.clear()
        source["a"].fill_(2)
        async with packed(publisher, source) as publishing:
            late, shown = added(publisher, 1)
            if is_cancelled:
                publishing.cancel()
        expected = 1 if is_cancelled else 2
        await late.connect(5)
        assert (late.version, values(shown)) == (expected, [[expected], [0]])
        assert [way for way, _ in gpus.done("copy")].count("D2H") == 1
        await late.close()


class FarLink(LocalLink):
    """Leads to another machine."""

    node = 1

    def send_tensor(self, tensor: Any, line: int, receiver: Any = None) -> Work[None]:
        sent: Work[None] = Work()
        sent._settle()
        return sent


async def test_another_machine_gets_afresh_what_is_published_and_not_what_is_withdrawn(
    cancelled: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    links = [FarLink.pair() for _ in range(2)]
    host, late = Ear(), Ear()
    links[0][1].listen(host)
    links[1][1].listen(late)
    begin = ReceiverTable.begin

    def begin_and_add(*args: Any) -> Any:
        is_under_way = begin(*args)
        publisher.add(1, links[1][0])  # which lacks version 1, and would get version 2 as the others do
        return is_under_way

    async with Publisher(weights(0)) as publisher:
        publisher.add(0, links[0][0])
        connecting = asyncio.create_task(publisher.connect(5))
        await asyncio.to_thread(host.until, lambda: host.words)
        links[0][1].send([say.ACK, 0, None, "", 0.0, 0.0, 0.0, None])
        await connecting
        handle = await publisher.publish(weights(1))
        line = host.words[0][-1]
        links[0][1].send([ROOM, 1, line])
        await asyncio.to_thread(host.until, lambda: host.words[-1][0] == WHOLE)
        links[0][1].send([LANDED, 1, pack_error(MemoryError("no room")), None, line])
        with pytest.raises(MemoryError):
            await handle
        monkeypatch.setattr(ReceiverTable, "begin", begin_and_add)
        await cancelled(publisher, weights(2))
        assert [words[1] for words in host.words if words[0] == BRING] == [1, 2, 1]
        assert late.words[0][0] == say.HELLO
    for _, to_sender in links:
        to_sender.close()


@pytest.mark.parametrize("far", [False, True])
async def test_who_comes_while_a_version_is_packed_gets_it_too(monkeypatch: pytest.MonkeyPatch, far: bool) -> None:
    """It was greeted with the version before, and is none of those that this one was for."""
    pack, ends, held = Store.pack, FarLinks.far_pair() if far else LocalLink.pair(), weights(0)
    async with Publisher(weights(0)) as publisher, Subscriber(ends[1], held) as late:
        first, _ = await joined(publisher, 0, "copy")
        await (await publisher.publish(weights(1)))
        late.serve()

        def pack_late(*args: Any, **options: Any) -> Any:
            publisher.add(1, ends[0])
            return pack(*args, **options)

        monkeypatch.setattr(Store, "pack", pack_late)
        handle = await publisher.publish(weights(2))
        monkeypatch.undo()
        assert set((await handle).per_worker) == {0}
        await late.wait_version(2, 10)
        assert values(held) == [[2], [2]]
        assert (await publisher.catch_up([1], 10))[1].status == "applied"
        assert set((await (await publisher.publish(weights(3)))).per_worker) == {0, 1}
        await first.close()


# -- who goes when everything is packed -----------------------------------------------------------------------------


async def test_who_is_removed_when_all_is_packed_has_failed_and_the_others_get_it(packed: Callable[..., Any]) -> None:
    async with Publisher(weights(0)) as publisher:
        (first, held), (second, _) = await joined(publisher, 0, "copy"), await joined(publisher, 1, "copy")
        async with packed(publisher, weights(1)) as publishing:
            publisher.remove(1)
        handle = publishing.result()
        with pytest.raises(ClosedError, match="receiver 1 of 'policy' was removed"):
            await handle
        assert handle.report is not None
        assert {name: ack.status for name, ack in handle.report.per_worker.items()} == {0: "applied", 1: "failed"}
        assert values(held) == [[1], [1]]
        report = await (await publisher.publish(weights(2)))
        assert (report.version, set(report.per_worker)) == (2, {0})
        assert values(held) == [[2], [2]]
        await first.close()
        await second.close()


async def test_if_nobody_is_left_when_all_is_packed_nobody_is_waited_for(packed: Callable[..., Any]) -> None:
    async with Publisher(weights(0)) as publisher:
        subscriber, _ = await joined(publisher, 0, "copy")
        async with packed(publisher, weights(1)) as publishing:
            publisher.remove(0)
        with pytest.raises(ClosedError, match="receiver 0 of 'policy' was removed"):
            await publishing.result()
        assert (await (await publisher.publish(weights(2)))).version == 2
        await subscriber.close()


async def test_who_is_replaced_when_all_is_packed_gets_it_all_the_same(packed: Callable[..., Any]) -> None:
    async with Publisher(weights(0)) as publisher:
        before, _ = await joined(publisher, 0, "copy")
        async with packed(publisher, weights(1)) as publishing:
            after, held = added(publisher, 0)
        after.serve()
        assert (await publishing.result()).per_worker[0].status == "applied"
        assert values(held) == [[1], [1]]
        await before.close()
        await after.close()


async def test_who_is_replaced_over_another_pipe_when_all_is_packed_has_failed_and_gets_the_next(
    packed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was packed is published when the old link is closed, and the new one not open yet."""
    pipes = [multiprocessing.Pipe() for _ in range(3)]
    scheme, models = MultiProcessWeightSyncScheme(), [weights(0) for _ in pipes]
    receiving = [MultiProcessWeightSyncScheme() for _ in pipes]
    scheme.init_on_sender("policy", pipes=[ours for ours, _ in pipes[:2]], source_model=weights(1))
    for each, (_, theirs), model in zip(receiving, pipes, models, strict=True):
        each.init_on_worker("policy", pipe=theirs, model=model)
    await asyncio.gather(*(each.connect(timeout=5) for each in (scheme, *receiving[:2])))
    sender, close, is_sent = scheme.get_sender(), MPTransport.close, asyncio.Event()

    async def close_late(transport: MPTransport) -> None:
        await is_sent.wait()
        close(transport)

    receiving[0].get_receiver().serve()
    with monkeypatch.context() as patch:
        patch.setattr(MPTransport, "close", close_late)
        async with packed(SimpleNamespace(publish=sender.send), weights(2), timeout=10) as sending:
            replacing = asyncio.ensure_future(sender.replace(1, pipes[2][0]))
        is_sent.set()
        await replacing
    with pytest.raises(ClosedError, match="receiver 1 of 'policy' was removed"):
        await sending
    receiving[2].get_receiver().serve()
    assert (await sender.send(weights(3), timeout=10)).version == 3
    assert values(models[0]) == values(models[2]) == [[3], [3]]
    for end in (scheme, *receiving):
        await end.close()
    for pipe in (*pipes[0], *pipes[1], *pipes[2]):
        pipe.close()


async def test_what_goes_wrong_in_publishing_is_raised_and_the_next_version_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Publisher(weights(0)) as publisher:
        subscriber, held = await joined(publisher, 0, "copy")
        with monkeypatch.context() as patch:
            patch.setattr(ReceiverTable, "publish", broken)
            with pytest.raises(ZeroDivisionError):
                await publisher.publish(weights(9))
        report = await (await publisher.publish(weights(1)))
        assert (report.version, values(held)) == (1, [[1], [1]])
        await subscriber.close()


def broken(*args: Any) -> None:
    raise ZeroDivisionError
