"""``verify="sha256"``: receivers hold what was sent once a version is applied, or the error names the tensor."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rlinf_async.errors import ConfigError, DeadlineExceeded, PeerLost, WeightMismatch
from rlinf_async.weights import Manifest, ParamTree, Publisher, Subscriber
from rlinf_async.weights.model import digests
from tests._support.weight_parts import LinkMessage, LocalLink, Update, messages
from tests.weights.ends import Tied, both
from tests.weights.pairs import pair

every_apply = pytest.mark.parametrize("apply", ["copy", "map"])


class Noted(nn.Linear):
    """With extra state."""

    note: Any = None

    def get_extra_state(self) -> Any:
        return self.note

    def set_extra_state(self, state: Any) -> None:
        self.note = state


def trained(note: str = "") -> nn.Module:
    """Of several dtypes, with NaNs of different payloads, tied tensors, an empty one and extra state."""
    model = nn.ModuleDict({"one": Noted(3, 3), "two": nn.Linear(3, 3), "three": nn.BatchNorm1d(3)})
    model["one"].note = note
    model["two"].weight = model["one"].weight
    bits = torch.tensor([0x7FC00000, 0x7F800001, -1, 0, 0x00000001, -0x80000000], dtype=torch.int32)
    model.register_buffer("odd", bits.view(torch.float32))
    model.register_buffer("fine", torch.tensor([math.nan, -math.nan, 1e300, 1 / 3], dtype=torch.float64))
    model.register_buffer("waves", torch.tensor([complex(math.nan, 1), 1 + 2j]))
    model.register_buffer("empty", torch.zeros(0, 3))
    model.register_buffer("number", torch.tensor(7))
    return model


def receivers() -> list[Any]:
    """Destinations of these weights: as they are, cast, tied less, in dicts, a TensorDict and a function."""
    cast = trained().bfloat16()
    cast.waves = cast.waves.to(torch.complex128)
    untied = trained()
    untied["two"].weight = nn.Parameter(torch.zeros(3, 3, dtype=torch.float16))
    doubles = {name: value for name, value in trained().double().state_dict().items() if name != "one._extra_state"}
    doubles["one"] = {"_extra_state": None}
    strided = trained()
    strided["two"].weight = strided["one"].weight = nn.Parameter(torch.zeros(3, 3).t())
    return [trained(), cast, untied, doubles, strided, lambda views: None]


def tamper(monkeypatch: pytest.MonkeyPatch, victim: torch.Tensor) -> None:
    """Has somebody change a tensor between the write and the digest; once."""
    write = Update.write

    def write_and_spoil(update: Update, *place: Any) -> None:
        write(update, *place)
        if any(target is victim for target in update.targets):
            monkeypatch.setattr(Update, "write", write)
            victim.data = victim.data.clone().fill_(-5)  # what is mapped cannot be written to

    monkeypatch.setattr(Update, "write", write_and_spoil)


@every_apply
async def test_receivers_of_all_forms_hold_what_was_sent(apply: str) -> None:
    destinations = receivers()
    model = trained("noted")
    async with pair(model, *destinations, apply=apply, verify="sha256") as (publisher, subscribers):
        for _ in range(3):
            with torch.no_grad():
                model["one"].weight += 1 / 3
            report = await (await publisher.publish(model))
            found = [report.per_worker[number].digest for number in range(len(destinations))]
            assert all(found)
            assert found[0] == found[4] == found[5]
            assert len(set(found)) == 4
        assert destinations[0]["one"].note == destinations[3]["one"]["_extra_state"] == "noted"
        assert {subscriber.version for subscriber in subscribers} == {3}


@every_apply
@pytest.mark.parametrize("dimension", [0, 1])
async def test_members_of_a_lazy_stack_are_hashed_each(
    apply: str, dimension: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [TensorDict(w=torch.zeros(4, dtype=dtype), batch_size=4) for dtype in (torch.float32, torch.float16)]
    weights = {"deep": {"w": torch.rand(2, 4) if dimension == 0 else torch.rand(4, 2)}, "beside": torch.rand(3)}
    model = {"deep": TensorDict.lazy_stack(members, dimension), "beside": torch.zeros(3)}
    async with pair(weights, model, apply=apply, verify="sha256") as (publisher, _):
        assert (await (await publisher.publish(weights))).per_worker[0].digest
        tamper(monkeypatch, members[1].get("w"))
        with pytest.raises(WeightMismatch, match=r"^'deep\.w' of version 2 is not what was sent"):
            await (await publisher.publish(weights))


@every_apply
async def test_a_receiver_whose_model_was_changed_is_named_with_the_tensor_and_the_others_have_the_version(
    apply: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [Tied(), Tied().bfloat16()]
    async with pair(Tied(1.0), *models, apply=apply, verify="sha256") as (publisher, subscribers):
        for version in (1, 4, 7):
            await (await publisher.publish(Tied(float(version)), version=version))
            tamper(monkeypatch, models[1].layers[1].bias)
            with pytest.raises(
                WeightMismatch, match=rf"'layers\.1\.bias' of version {version + 1} .* at receiver 1: something else"
            ) as raised:
                await (await publisher.publish(Tied(float(version + 1))))
            assert any("worker 1" in note for note in raised.value.__notes__)
            assert not any("worker 0" in note for note in raised.value.__notes__)
            assert list(publisher.quarantined) == [1]
            assert [each.version for each in subscribers] == [version + 1] * 2
            report = await (await publisher.publish(Tied(float(version + 2))))
            assert report.per_worker[1].digest
            assert not publisher.quarantined
            assert [model.values() for model in models] == [{float(version + 2)}] * 2


@pytest.mark.parametrize("kind", ["multiprocess", "shared memory"])
@every_apply
async def test_over_a_pipe_too(kind: str, apply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with both(kind, apply=apply, verify="sha256") as ends:
        assert (await ends.deliver()).per_worker[0].digest
        tamper(monkeypatch, ends.model.steps)
        with pytest.raises(WeightMismatch, match=r"'steps' of version 2 is not what was sent"):
            await ends.deliver(Tied(2.0))
        assert (await ends.deliver(Tied(3.0))).per_worker[0].digest
        assert ends.sees == {3.0}
        assert not ends.errors


async def test_an_answer_counts_although_its_receiver_has_left_before_it_was_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comes, sha256 = threading.Event(), digests.hashlib.sha256
    async with pair(Tied(), Tied(), verify="sha256", serves=False) as (publisher, (subscriber,)):
        ours = threading.get_ident()

        def wait(array: Any) -> Any:
            assert threading.get_ident() == ours or comes.wait(20)
            return sha256(array)

        monkeypatch.setattr(digests.hashlib, "sha256", wait)
        handle = await publisher.publish(Tied(2.0))
        assert await subscriber.receive(10)
        await subscriber.close()
        assert not handle.done()
        comes.set()
        assert (await handle).per_worker[0].digest
        handle = await publisher.publish(Tied(3.0))
        with pytest.raises(PeerLost):
            await handle


async def test_a_killed_comparison_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(Tied(), Tied(), verify="sha256") as (publisher, _):
        monkeypatch.setattr(digests, "_hashed", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await (await publisher.publish(Tied(2.0)))
        monkeypatch.undo()
        assert (await (await publisher.publish(Tied(3.0)))).per_worker[0].digest


async def test_a_side_that_gives_no_digest_is_an_error_and_a_side_that_asks_for_none_is_not() -> None:
    for ours, theirs in (("sha256", "off"), ("off", "sha256")):
        to_receiver, to_sender = LocalLink.pair()
        async with Publisher(verify=ours) as publisher, Subscriber(to_sender, Tied(), verify=theirs) as subscriber:
            publisher.add(0, to_receiver)
            subscriber.serve()
            handle = await publisher.publish(Tied(1.0), timeout=10)
            if ours == "sha256":
                with pytest.raises(ConfigError, match=r"^receiver 0 gives no digest of version 1: it takes verify="):
                    await handle
            else:
                assert (await handle).per_worker[0].digest is None


async def test_versions_that_are_given_up_late_receivers_and_weights_from_elsewhere() -> None:
    model = Tied()
    async with pair(Tied(), model, verify="sha256", serves=False) as (publisher, (subscriber,)):
        for value in (1.0, 2.0, 3.0):
            handle = await publisher.publish(Tied(value), timeout=0.05)
            with pytest.raises(DeadlineExceeded):
                await handle
        while await subscriber.receive(0.5):
            pass
        assert model.values() == {3.0}
        subscriber.serve()
        report = await (await publisher.publish(Tied(3.0)))
        assert report.per_worker[0].digest
        late, (to_receiver, to_sender) = Tied().bfloat16(), LocalLink.pair()
        async with Subscriber(to_sender, late, verify="sha256") as another:
            publisher.add(1, to_receiver)
            await another.connect(10)
            await publisher.connect(10)
            assert (await publisher.catch_up([1], 10))[1].status == "applied"
            assert late.values() == {3.0}
            await subscriber.accept(lambda: model.fill(9.0), 5)
            another.serve()
            handle = await publisher.publish(Tied(4.0))
            with pytest.raises(ConfigError, match="receiver 0 gives no digest of version 5"):
                await handle
            assert late.values() == {4.0}


async def test_without_it_nothing_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Tied()
    async with pair(Tied(), model) as (publisher, _):
        monkeypatch.setattr(digests, "_hashed", lambda *_: 1 / 0)
        report = await (await publisher.publish(Tied(1.0)))
        assert report.per_worker[0].digest is None
        assert model.values() == {1.0}


async def test_tensors_that_several_threads_hash_have_the_same_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "threads_for", lambda _: 4)
    weights = {f"{number}": torch.rand(number) for number in range(200)}
    model = {name: torch.zeros_like(value) for name, value in weights.items()}
    async with pair(weights, model, verify="sha256") as (publisher, _):
        assert (await (await publisher.publish(weights))).per_worker[0].digest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2, torch.float64])
def test_nans_that_a_cast_makes_are_one_and_others_are_told_apart(dtype: torch.dtype) -> None:
    held = torch.tensor([[math.nan, 1.0]] * 2).to(dtype)
    held.view(torch.uint8)[1, 0] ^= 1
    for sent, count in ((torch.zeros(2), 1), (torch.zeros(2, dtype=dtype), 2)):
        manifest = Manifest.of(ParamTree.of({"w": sent}))
        assert len({digests.digests_of(manifest, [(0, (), values)]) for values in held}) == count


def test_a_version_is_hashed_at_once_in_the_forms_that_the_one_before_was_asked_for_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manifest = Manifest.of(ParamTree.of({"w": torch.zeros(2)}))
    expected, leaves = digests.ExpectedDigests(manifest), [torch.zeros(2)]
    given = digests.digests_of(manifest, [(0, (), torch.zeros(2, dtype=torch.bfloat16))])
    assert not expected.differing(1, leaves, *given)
    expected.begin(2, leaves)
    monkeypatch.setattr(digests, "_hashed", lambda *_: 1 / 0)
    assert not expected.differing(2, leaves, *given)
    assert expected.differing(2, leaves, given[0], bytes(32)) == ["w"]


async def test_an_answer_that_comes_at_once_is_compared_all_the_same() -> None:
    """Before the trainer has begun to hash the version."""

    class Hasty:
        """A receiver that answers where it hears, and holds something else than what was sent."""

        def on_message(self, heard: LinkMessage) -> None:
            what = heard[0]
            if what == messages.HELLO:
                to_sender.send([messages.ACK, 0, None, "", 0.0, 0.0, 0.0, None])
            elif what == messages.PUBLISH:
                to_sender.send([messages.ACK, heard[1], None, "", 0.0, 0.0, 0.0, (heard[1], b"", bytes(32))])

        def on_end(self, error: Exception) -> None: ...

    to_receiver, to_sender = LocalLink.pair()
    to_sender.listen(Hasty())
    source = {"w": torch.ones(3)}
    async with Publisher(source, verify="sha256") as publisher:
        publisher.add(0, to_receiver)
        await publisher.connect(5)
        for _ in range(2):
            with pytest.raises(WeightMismatch, match=r"'w' of version . is not what was sent"):
                await (await publisher.publish(source))
