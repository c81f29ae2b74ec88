"""Layouts of weights that are mapped: packed in the receivers' dtype, where all of them have the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights import Publisher, Subscriber
from tests._support.weight_parts import LocalLink, Store, words
from tests.weights.ends import Tied
from tests.weights.far_links import FarLink
from tests.weights.pairs import pair


def halved() -> Tied:
    return Tied().bfloat16()


def stands_in_slot(model: torch.nn.Module) -> bool:
    """Whether its parameters are neighbours, as the slot has them."""
    addresses = sorted(parameter.data_ptr() for parameter in model.parameters())
    return all(address % 256 == 0 for address in addresses) and addresses[-1] - addresses[0] < 1 << 16


async def sent(publisher: Publisher, source: Tied, value: float) -> Any:
    source.fill(value)
    return await (await publisher.publish(source))


async def test_from_the_first_version_on_where_all_have_connected_before(caplog: pytest.LogCaptureFixture) -> None:
    source, models = Tied(1.0), [halved(), halved()]
    async with pair(source, *models, apply="map") as (publisher, _):
        await sent(publisher, source, 1.0 + 2.0**-12)
        assert publisher.manifest is not None
        assert {leaf.transport_dtype for leaf in publisher.manifest.leaves} == {"bfloat16"}
        for value in (2.0, 3.0):
            await sent(publisher, source, value)
            assert [model.values() for model in models] == [{value}] * 2
            assert all(map(stands_in_slot, models))
    assert not caplog.records
    assert {parameter.dtype for parameter in models[0].parameters()} == {torch.bfloat16}
    assert models[0].values() == {3.0}, "of its own, when all is closed"


async def test_from_the_second_version_on_where_the_first_was_sent_before_they_came(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, model = Tied(1.0), halved()
    to_receiver, to_sender = LocalLink.pair()
    async with Publisher(source, apply="map") as publisher, Subscriber(to_sender, model, apply="map") as subscriber:
        publisher.add(0, to_receiver)
        handle = await publisher.publish(source)
        subscriber.serve()
        await handle
        assert model.values() == {1.0}
        assert publisher.manifest is not None
        assert not any(leaf.transport_dtype == "bfloat16" for leaf in publisher.manifest.leaves)
        await sent(publisher, source, 2.0)
        assert model.values() == {2.0}
        assert stands_in_slot(model)
        late, shown = halved(), []
        there, here = LocalLink.pair()
        async with Subscriber(here, late, apply="map") as other:
            publisher.add(1, there)
            await other.connect(5)
            shown.append((other.version, late.values(), stands_in_slot(late)))
        assert shown == [(2, {2.0}, True)]
    assert not caplog.records


async def test_a_receiver_says_that_it_fits_before_it_acknowledges_what_it_was_greeted_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, model, said = Tied(1.0), halved(), []
    to_receiver, to_sender = LocalLink.pair()
    send = to_sender.send
    async with Publisher(source, apply="map") as publisher, Subscriber(to_sender, model, apply="map") as subscriber:
        monkeypatch.setattr(to_sender, "send", lambda told: (said.append(told[0]), send(told)))
        publisher.add(0, to_receiver)
        handle = await publisher.publish(source)
        subscriber.serve()
        await handle
    assert said[:2] == [words.READY, words.ACK], "the next version is laid out by what it wishes"


async def test_who_has_another_dtype_than_others_copies_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    source, models = Tied(1.0), [halved(), Tied()]
    async with pair(source, *models, apply="map") as (publisher, _):
        for value in (1.0, 2.0, 3.0, 4.0, 5.0):
            await sent(publisher, source, value)
            assert [model.values() for model in models] == [{value}] * 2
        assert list(map(stands_in_slot, models)) == [False, True]
    assert len(caplog.records) == 1
    for text in ("copied", "torch.bfloat16", "transport_dtype=", "strict_dtype=True"):
        assert text in caplog.text


@pytest.mark.parametrize("options", [{"transport_dtype": "float16"}, {"delta": "on"}])
async def test_a_layout_that_was_asked_for_stays(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    source, model = Tied(1.0), halved()
    async with pair(source, model, apply="map", **options) as (publisher, _):
        before = publisher.manifest
        for value in (1.0, 2.0):
            await sent(publisher, source, value)
        assert publisher.manifest is before
        assert model.values() == {2.0}
    assert len(caplog.records) == 1


async def test_a_dtype_that_changes_is_followed_and_nothing_is_torn() -> None:
    source, model = Tied(1.0), Tied()
    async with pair(source, model, apply="map") as (publisher, (subscriber,)):
        kinds = []
        for version in range(1, 9):
            if version in (3, 6):
                async with subscriber.reading():
                    model.to(torch.bfloat16 if version == 3 else torch.float32)
            await sent(publisher, source, float(version))
            assert model.values() == {float(version)}
            assert publisher.manifest is not None
            kinds.append(publisher.manifest.leaves[0].transport_dtype)
        assert kinds == [*["float32"] * 3, *["bfloat16"] * 3, *["float32"] * 2]
        assert stands_in_slot(model)


async def test_a_new_layout_that_is_not_published_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source, model = Tied(1.0), halved()
    async with pair(source, model, apply="map") as (publisher, _):
        before = publisher.manifest
        with monkeypatch.context() as patch:
            patch.setattr(Store, "pack", refused)
            with pytest.raises(MemoryError):
                await publisher.publish(source)
        for others in ({"w": torch.zeros(1)}, Tied(1.0).double()):
            with pytest.raises(WeightMismatch):
                await publisher.publish(others)
        assert publisher.manifest is before
        assert publisher.version == 0
        await sent(publisher, source, 3.0)
        assert publisher.manifest is not before
        assert model.values() == {3.0}


async def test_who_is_slow_opens_what_was_published_in_the_layout_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, quick, slow = Tied(1.0), halved(), halved()
    async with pair(source, quick, slow, apply="map", serves=False) as (publisher, (first, second)):
        first.serve()
        handle = await publisher.publish(source)
        await second.receive(5)
        await handle
        source.fill(2.0)
        (await publisher.publish(source)).cancel()  # the second one has heard of it, and does not act
        await first.wait_version(2, 5)
        async with first.reading():
            quick.float()
        source.fill(3.0)
        await (await publisher.publish(source, [0]))  # so that its wish is known
        source.fill(4.0)
        handle = await publisher.publish(source)
        assert len(publisher._stores) == 2
        second.serve()
        await handle
        assert quick.values() == slow.values() == {4.0}
        await publisher.aside.wait()
        assert publisher._stores == [publisher._store]
    assert [record.levelname for record in caplog.records] == ["WARNING"], "it copies, and says so"
    assert not publisher._stores


async def test_other_machines_have_it_in_their_dtype_too() -> None:
    source, model, near = Tied(1.0), halved(), halved()
    to_receiver, to_sender = FarLink.far_pair()
    async with (
        pair(source, near, apply="map") as (publisher, _),
        Subscriber(to_sender, model, apply="map") as far,
    ):
        publisher.add("far", to_receiver)
        far.serve()
        for value in (1.0, 2.0, 3.0):
            await sent(publisher, source, value)
            assert model.values() == near.values() == {value}
        assert publisher.manifest is not None
        assert {leaf.transport_dtype for leaf in publisher.manifest.leaves} == {"bfloat16"}
        assert stands_in_slot(model)
        assert stands_in_slot(near)


def refused(*args: Any, **options: Any) -> Any:
    raise MemoryError("no room")


async def test_who_comes_later_in_the_senders_dtype_has_every_bit_of_the_next_version() -> None:
    source, model, late = Tied(1.0), halved(), Tied()
    async with pair(source, model, apply="map") as (publisher, _):
        await sent(publisher, source, 1.0)
        there, here = LocalLink.pair()
        async with Subscriber(here, late, apply="map") as other:
            publisher.add(1, there)
            await other.connect(5)
            other.serve()
            await sent(publisher, source, 2.0 + 2.0**-12)
            assert late.values() == {2.0 + 2.0**-12}
            assert stands_in_slot(late)
            assert model.values() == {2.0}
