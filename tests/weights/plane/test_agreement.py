"""Agreement on a version: errors are reported, and every other subscriber gets the next one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

from rlinf_async._core.failures import pack_error
from rlinf_async.errors import TransferFailed, WeightMismatch
from rlinf_async.weights import Publisher, Subscriber
from tests._support.fake_gpus import FakeGpus
from tests._support.weight_parts import Leases, LinkMessage, LocalLink, messages
from tests.weights.plane.test_publisher import Net, filled, shown, weights


@contextlib.asynccontextmanager
async def late(source: Any, first: Any, destination: Any, **options: Any) -> AsyncIterator[Any]:
    """A publisher that has published ``first``, and a subscriber that has not heard of it yet."""
    to_receiver, to_sender = LocalLink.pair()
    async with Publisher(source) as publisher, Subscriber(to_sender, destination, **options) as subscriber:
        await (await publisher.publish(first))
        publisher.add("it", to_receiver)
        yield publisher, subscriber


async def taken(publisher: Publisher, subscriber: Subscriber, source: Any) -> Any:
    """The report of a version that the subscriber receives meanwhile."""
    async with asyncio.TaskGroup() as tasks:
        handle = await publisher.publish(source)
        tasks.create_task(subscriber.wait_version(handle.version, 10))
        return await handle


# -- the version that a receiver begins with ------------------------------------------------------------------------


async def test_a_state_that_is_refused_in_the_first_version_costs_that_one_only() -> None:
    class Choosy(Net):
        def set_extra_state(self, state: Any) -> None:
            if state["state"] == "state 1":
                raise RuntimeError("not that one")
            super().set_extra_state(state)

    destination = Choosy()
    async with late(Net(), filled(1), destination) as (publisher, subscriber):
        with pytest.raises(RuntimeError, match="not that one"):
            await subscriber.connect(5)
        await publisher.connect(5)
        await taken(publisher, subscriber, filled(2))
        assert shown(destination) == {2.0}


async def test_memory_that_cannot_be_mapped_in_the_first_version_costs_that_one_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    destination = weights(0)

    def fail(*_: Any) -> None:
        raise TransferFailed("no more descriptors")

    async with late(weights(0), weights(1), destination) as (publisher, subscriber):
        with monkeypatch.context() as patched:
            patched.setattr(Leases, "prepare", fail)
            with pytest.raises(TransferFailed, match="no more descriptors"):
                await subscriber.connect(5)
        await taken(publisher, subscriber, weights(2))
        assert float(destination["a"].min()) == 2.0


@pytest.mark.parametrize("wait", [lambda publisher: publisher.catch_up(["it"], 60), Publisher.connect])
async def test_nobody_waits_for_a_receiver_that_is_removed_meanwhile(wait: Any) -> None:
    async with late(weights(0), weights(1), weights(0)) as (publisher, _):
        waiting = asyncio.ensure_future(wait(publisher))
        await asyncio.sleep(0.01)
        publisher.remove("it")
        await asyncio.wait_for(waiting, 5)


# -- what is looked for anew ----------------------------------------------------------------------------------------


class Place:
    """Where a path leads to."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.looks = 0

    def find(self) -> Any:
        self.looks += 1
        if self.model is None:
            raise LookupError("nothing is there")
        if isinstance(self.model, BaseException):
            raise self.model
        return self.model


@contextlib.asynccontextmanager
async def found(place: Place, **options: Any) -> AsyncIterator[Any]:
    """A publisher, and a subscriber that looks for its destination there; they have met."""
    to_receiver, to_sender = LocalLink.pair()
    theirs = {name: options[name] for name in ("apply", "gpus") if name in options}
    source = options.pop("source", weights(0))
    async with Publisher(source, **options) as publisher, Subscriber(to_sender, find=place.find, **theirs) as it:
        publisher.add("it", to_receiver)
        await asyncio.gather(publisher.connect(5), it.connect(5))
        it.serve()
        yield publisher, it


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_another_object_gets_the_next_version_and_the_one_before_keeps_its_own(apply: str) -> None:
    first, second = weights(0), weights(0)
    place = Place(first)
    async with found(place, apply=apply) as (publisher, subscriber):
        await (await publisher.publish(weights(1)))
        place.model = second
        for value in range(2, 8):
            await (await publisher.publish(weights(value)))
            assert {float(tensor.max()) for tensor in second.values()} == {value}
            assert {float(bound) for tensor in first.values() for bound in torch.aminmax(tensor)} == {1.0}
        assert subscriber.version == 7
    first["a"].fill_(9)
    second["a"].fill_(9)  # both in memory of their own


async def test_another_object_gets_the_version_that_the_one_before_has() -> None:
    place = Place(weights(0))
    async with found(place) as (publisher, subscriber):
        await (await publisher.publish(weights(1)))
        place.model = weights(0)
        subscriber._send(messages.NEED, 1, None)
        async with asyncio.timeout(5):
            while not place.model["a"].any():
                await asyncio.sleep(0)


async def test_another_object_that_does_not_fit_fails_the_version_and_may_fit_the_next() -> None:
    first, second = weights(0), {"a": torch.zeros(3, 5)}
    place = Place(first)
    async with found(place) as (publisher, subscriber):
        await (await publisher.publish(weights(1)))
        place.model = second
        with pytest.raises(WeightMismatch, match=r"'b\.c'"):
            await (await publisher.publish(weights(2)))
        assert (float(first["a"].max()), float(second["a"].max()), subscriber.version) == (1.0, 0.0, 1)
        second["b.c"] = torch.zeros(7)
        await (await publisher.publish(weights(3)))
        assert (float(first["a"].max()), float(second["a"].max())) == (1.0, 3.0)
        place.model = None
        with pytest.raises(LookupError, match="nothing is there"):
            await (await publisher.publish(weights(4)))
        place.model = first
        await (await publisher.publish(weights(5)))
        assert (float(first["a"].max()), float(second["a"].max())) == (5.0, 3.0)


async def test_where_nothing_is_found_the_sender_hears_why_and_what_is_found_later_gets_the_next() -> None:
    place = Place(None)
    to_receiver, to_sender = LocalLink.pair()
    async with Publisher(weights(0)) as publisher, Subscriber(to_sender, find=place.find) as subscriber:
        publisher.add("it", to_receiver)
        met = await asyncio.gather(publisher.connect(5), subscriber.connect(5), return_exceptions=True)
        assert [str(error) for error in met] == ["nothing is there"] * 2
        place.model = weights(0)
        subscriber.serve()
        await publisher.connect(5)
        await (await publisher.publish(weights(1)))
        assert float(place.model["a"].max()) == 1.0


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_another_object_elsewhere_than_on_the_gpu_gets_the_next_version_there(apply: str) -> None:
    gpus = FakeGpus()
    source, there, here = gpus.put(weights(0)), gpus.put(weights(0)), weights(0)
    place = Place(there)
    async with found(place, source=source, apply=apply, gpus=gpus) as (publisher, _):
        for version, model in enumerate((*[there] * 4, here, here, there, there), 1):
            place.model = model
            for tensor in source.values():
                tensor.fill_(version)
            await (await publisher.publish(source))
            assert {float(bound) for tensor in model.values() for bound in torch.aminmax(tensor)} == {version}
            assert gpus.places(model.values()) == gpus.places(there.values() if model is there else [])


async def test_a_late_receiver_on_the_cpu_begins_with_the_version_on_the_gpu() -> None:
    gpus, destination = FakeGpus(), weights(0)
    source, there = gpus.put(weights(1)), gpus.put(weights(0))
    async with found(Place(there), source=source, gpus=gpus) as (publisher, _):
        await (await publisher.publish(source))
        assert not publisher._store.latest.is_in_slot
        to_receiver, to_sender = LocalLink.pair()
        async with Subscriber(to_sender, destination) as late_one:
            publisher.add("late", to_receiver)
            await late_one.connect(5)
            await late_one.wait_version(1, 5)
        assert float(destination["a"].min()) == 1.0


async def test_a_search_that_is_cancelled_fails_one_version_only() -> None:
    place = Place(weights(0))
    async with found(place) as (publisher, _):
        await (await publisher.publish(weights(1)))
        model, place.model = place.model, asyncio.CancelledError("of the user's")
        with pytest.raises(RuntimeError, match="of the user's"):
            await asyncio.wait_for(await publisher.publish(weights(2)), 10)
        place.model = model
        await asyncio.wait_for(await publisher.publish(weights(3)), 10)
        assert float(model["a"].max()) == 3.0


async def test_a_worker_that_finds_the_same_again_checks_nothing_anew() -> None:
    place = Place(weights(0))
    async with found(place) as (publisher, subscriber):
        await (await publisher.publish(weights(1)))
        destination = subscriber._applying.destination._fit
        looks = place.looks
        for value in range(2, 5):
            await (await publisher.publish(weights(value)))
        assert place.looks == looks + 3
        assert subscriber._applying.destination._fit is destination


async def test_who_comes_late_to_another_machine_and_refuses_is_waited_for_no_longer() -> None:
    """It hears what comes before anything has come to its machine, so that it answers no version."""
    to_receiver, to_sender = LocalLink.pair()
    to_receiver.node = 1

    class Unfit:
        def on_message(self, heard: LinkMessage) -> None:
            if heard[0] == messages.HOST:
                to_sender.send([messages.ACK, 0, pack_error(WeightMismatch("other shapes")), "", 0.0, 0.0, 0.0, None])

        def on_end(self, error: Exception) -> None: ...

    to_sender.listen(Unfit())
    async with Publisher(weights(0)) as publisher:
        await (await publisher.publish(weights(1)))
        publisher.add("it", to_receiver)
        found = await asyncio.wait_for(publisher.catch_up(["it"], 60), 5)
        assert isinstance(found["it"].error, WeightMismatch)
