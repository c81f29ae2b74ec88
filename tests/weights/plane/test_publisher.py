"""Publisher and subscribers within one process."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rlinf_async._recorder import recording
from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost, TransferFailed, WeightMismatch
from rlinf_async.weights import Subscriber
from rlinf_async.weights.plane.publisher import Publisher
from tests._support.weight_parts import LocalLink, SlotWriter
from tests.weights.pairs import pair


def weights(value: float, **more: Any) -> dict[str, Any]:
    return {"a": torch.full((3, 5), float(value)), "b.c": torch.full((7,), float(value)), **more}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.state = "new"

    def get_extra_state(self) -> Any:
        return {"state": self.state}

    def set_extra_state(self, state: Any) -> None:
        self.state = state["state"]


def filled(value: int) -> Net:
    net = Net()
    net.state = f"state {value}"
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.fill_(value)
    return net


def shown(net: Net) -> set[float]:
    return {
        float(bound)
        for tensor in net.state_dict(keep_vars=False).values()
        if isinstance(tensor, torch.Tensor)
        for bound in (tensor.min(), tensor.max())
    }


# -- what arrives ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_a_module_with_tied_weights_buffers_and_extra_state_arrives_whole(apply: str) -> None:
    destination = Net()
    parameters = list(destination.parameters())
    async with pair(Net(), destination, apply=apply) as (publisher, (subscriber,)):
        for version in range(1, 6):
            report = await (await publisher.publish(filled(version)))
            assert (report.version, report.per_worker[0].status, subscriber.version) == (version, "applied", version)
            async with subscriber.reading() as read:
                assert read == version
                assert shown(destination) == {version}
                assert destination.state == f"state {version}"
        assert destination.head.weight is destination.embedding.weight
        assert all(now is then for now, then in zip(destination.parameters(), parameters, strict=True))
    assert shown(destination) == {5}, "closing leaves the last version"
    with torch.no_grad():
        destination.embedding.weight.fill_(9)  # in memory of its own


async def test_a_dtype_to_travel_in_is_cast_on_the_way_and_integers_are_not() -> None:
    source = weights(1.00390625, steps=torch.tensor(300))
    exact, cast = weights(0, steps=torch.tensor(0)), weights(0, steps=torch.tensor(0))
    cast["a"] = cast["a"].bfloat16()
    async with pair(source, exact, cast, transport_dtype=torch.bfloat16) as (publisher, _):
        report = await (await publisher.publish())
    assert exact["a"].dtype is torch.float32
    assert float(exact["a"][0, 0]) == float(cast["a"][0, 0]) == 1.0
    assert int(exact["steps"]) == int(cast["steps"]) == 300
    assert report.bytes == 3 * 256


async def test_a_version_whose_wait_is_given_up_is_forgotten() -> None:
    async with pair(weights(1), weights(0)) as (publisher, (subscriber,)):
        await (await publisher.publish())
        async with subscriber.reading():  # the next version is not applied in this block
            handle = await publisher.publish()
            handle.cancel()
            assert publisher._receivers.finish(handle.version) is None


async def test_a_function_as_destination_gets_every_version_by_path() -> None:
    seen: list[dict[tuple[str, ...], float]] = []
    async with pair(
        weights(0), lambda views: seen.append({path: float(view.max()) for path, view in views.items()})
    ) as (publisher, _):
        await (await publisher.publish(weights(1)))
    assert seen == [{("a",): 1.0, ("b", "c"): 1.0}]


async def test_a_function_as_destination_gets_tied_tensors_under_all_names() -> None:
    seen: list[list[tuple[str, ...]]] = []
    tied = torch.ones(4)
    async with pair({"head": tied, "tokens": tied}, lambda views: seen.append(list(views))) as (publisher, _):
        await (await publisher.publish())
    assert seen == [[("head",), ("tokens",)]]


async def test_a_version_that_breaks_off_while_it_is_published_is_recorded_as_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[str] = []
    monkeypatch.setattr(recording, "begin", lambda kind, *_: recorded.append(kind.name) or 7)
    monkeypatch.setattr(recording, "end", lambda *_: recorded.append("end"))
    async with pair(weights(0), weights(0)) as (publisher, _):
        with monkeypatch.context() as broken:
            broken.setattr(SlotWriter, "publish", lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await publisher.publish(weights(1))
        assert recorded == ["WEIGHTS", "end"]
        await (await publisher.publish(weights(2)))


# -- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"a": torch.zeros(5, 3)}, "'a'"),
        ({"a": torch.zeros(3, 5, dtype=torch.float64)}, "'a'"),
        ({"z": torch.zeros(1)}, "'z'"),
        ({"b.c": None}, "'b.c'"),
    ],
)
async def test_weights_that_differ_from_the_first_are_refused_before_a_byte_is_written(
    changed: dict[str, Any], complaint: str
) -> None:
    destination, bad = weights(0), weights(2)
    async with pair(weights(0), destination) as (publisher, _):
        await (await publisher.publish(weights(1)))
        bad.update(changed)
        with pytest.raises(WeightMismatch, match=complaint):
            await publisher.publish({name: tensor for name, tensor in bad.items() if tensor is not None})
        assert publisher.version == 1
        assert float(destination["a"].max()) == 1.0
        await (await publisher.publish(weights(3)))
        assert float(destination["a"].min()) == 3.0


async def test_what_goes_wrong_in_a_receiver_is_raised_as_itself_and_names_it() -> None:
    def fail(views: Any) -> None:
        raise LookupError("no such thing")

    good = weights(0)
    async with pair(weights(0), fail, good, serves=False) as (publisher, (bad, other)):
        handle = await publisher.publish(weights(1))
        with pytest.raises(LookupError, match="no such thing"):
            await bad.receive(1)
        with pytest.raises(TransferFailed, match="torn"):
            bad.reading().__enter__()
        assert await other.receive(1)
        with pytest.raises(LookupError, match="no such thing") as raised:
            await handle
        assert "worker 0 does not have version 1" in str(raised.value.__notes__)
        assert publisher.quarantined == {0: "LookupError: no such thing"}
        assert float(good["a"].max()) == 1.0


# -- life -----------------------------------------------------------------------------------------------------------


async def test_nobody_waits_for_ever_for_the_other_side() -> None:
    to_receiver, to_sender = LocalLink.pair()
    async with Publisher(weights(0)) as publisher, Subscriber(to_sender, weights(0)) as subscriber:
        with pytest.raises(DeadlineExceeded, match=r"did not connect within 0.01 s"):
            await subscriber.connect(0.01)
        publisher.add("it", to_receiver)
        with pytest.raises(DeadlineExceeded, match=r"receivers 'it' \(.*\) of 'policy' did not connect within 0.01 s"):
            await publisher.connect(0.01)
        assert not await subscriber.receive(0.01), "it has met the sender, which has published nothing"
        await publisher.connect(5)


async def test_each_side_hears_of_the_others_end_and_a_closed_one_says_so() -> None:
    async with pair(weights(0), weights(0), weights(0), serves=False) as (publisher, (first, second)):
        await first.close()
        handle = await publisher.publish(weights(1))
        assert await second.receive(1)
        with pytest.raises(PeerLost, match="closed its end"):
            await handle
        await publisher.close()
        with pytest.raises(PeerLost, match="closed its end"):
            await second.receive(1)
        assert second.version == 1
        async with second.reading() as version:
            assert version == 1
        with pytest.raises(ClosedError, match="the publisher of 'policy' is closed"):
            await publisher.publish(weights(2))
        with pytest.raises(ClosedError, match="the subscriber of 'policy' is closed"):
            await first.receive()


async def test_the_loop_goes_on_while_large_weights_are_copied() -> None:
    source, destination = {"w": torch.ones(20_000_000)}, {"w": torch.zeros(20_000_000)}
    async with pair(source, destination, serves=False) as (publisher, (subscriber,)):
        for step in (publisher.publish(source), subscriber.receive(1)):
            turns = 0
            task = asyncio.create_task(step)
            while not task.done():
                turns += 1
                await asyncio.sleep(0)
            await task
            assert turns > 20
    assert float(destination["w"].min()) == 1.0


def test_a_publisher_works_in_one_loop_after_another() -> None:
    destination = weights(0)
    to_receiver, to_sender = LocalLink.pair()
    publisher, subscriber = Publisher(weights(0)), Subscriber(to_sender, destination)
    publisher.add(0, to_receiver)
    with pytest.raises(DeadlineExceeded):
        asyncio.run(publisher.connect(0.01))
    asyncio.run(subscriber.connect(5))
    handle = asyncio.run(publisher.publish(weights(4)))
    assert asyncio.run(subscriber.receive(1))
    assert handle.wait(5).version == 1
    assert float(destination["a"].min()) == 4.0
    asyncio.run(publisher.close())
    asyncio.run(subscriber.close())


async def test_a_refused_publish_of_sharded_weights_is_counted() -> None:
    publisher: Any = Publisher(weights(1))
    publisher._packing = SimpleNamespace(taker=SimpleNamespace(is_sharded=True), store=None)
    with pytest.raises(ValueError, match="version= is at least 0"):
        await publisher.publish(version=-1)
    assert (publisher._calls.count, publisher._calls._place >= 0) == (1, True)


async def test_who_closes_ends_the_waits_for_receivers() -> None:
    publisher = Publisher(weights(1))
    publisher.add(0, LocalLink.pair()[0])  # nobody is at the other end
    connecting = asyncio.create_task(publisher.connect())
    await asyncio.sleep(0)
    await publisher.close()
    async with asyncio.timeout(5):
        with pytest.raises(ClosedError, match="the publisher of 'policy' is closed"):
            await connecting


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_who_is_closed_keeps_no_weights_alive(apply: str) -> None:
    source, mine = filled(1), Net()
    left = [weakref.ref(tensor) for net in (source, mine) for tensor in (*net.parameters(), *net.buffers())]
    gc.collect()
    gc.disable()
    try:
        async with pair(source, mine, apply=apply) as (publisher, subscribers):
            await (await publisher.publish())
        del source, mine
        assert [reference for reference in left if reference() is not None] == []
    finally:
        gc.enable()
    assert subscribers[0].version == publisher.version == 1
