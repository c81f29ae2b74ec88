"""Conformance claims: delivery of weights, and connections."""

from __future__ import annotations

import asyncio
import functools
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlinf_async.errors import ConfigError, WeightMismatch
from tests.weights.contract.claims import Make, claim
from tests.weights.ends import CALLED, Tied


@claim()
async def what_is_sent_is_what_the_workers_have(make: Make) -> None:
    source = Tied(1.0)
    async with make(source) as ends:
        for version in (1, 2, 3, 4):
            source.fill(10.0 * version)
            report = await ends.deliver()
            assert report.version == version == ends.sender.version
            assert {worker: ack.status for worker, ack in report.per_worker.items()} == dict.fromkeys(
                range(ends.size), "applied"
            )
            await ends.expect(version, 10.0 * version)
        assert await ends.receivers.errors() == [[]] * ends.size


@claim()
async def who_is_connected_has_the_trainers_weights(make: Make) -> None:
    async with make(Tied(7.0)) as ends:
        await ends.connect()
        await ends.expect(1, 7.0)
        assert ends.sender.version == 1
        await ends.connect()
        await ends.expect(1, 7.0)  # they have met
        await ends.deliver(Tied(8.0))
        await ends.expect(2, 8.0)


@claim(unless=CALLED)  # objects of the sender's process, which have applied them by then
async def what_becomes_of_the_source_once_it_is_staged_is_never_seen(make: Make) -> None:
    source = Tied(1.0)
    async with make(source) as ends:
        await ends.sender.send_async()
        source.fill(99.0)
        await ends.receivers.take()
        await ends.sender.wait_async()
        await ends.expect(1, 1.0)
        source.fill(98.0)
        await ends.expect(1, 1.0)


@claim()
async def a_module_a_dict_and_a_path_can_be_sent(make: Make) -> None:
    async with make() as ends:
        await ends.deliver(Tied(2.0))
        await ends.expect(1, 2.0)
        await ends.deliver({name: torch.full_like(tensor, 3.0) for name, tensor in Tied().state_dict().items()})
        await ends.expect(2, 3.0)
        with pytest.raises(ValueError, match="Cannot resolve string reference 'policy' without context"):
            ends.sender.send("policy")


@claim()
async def an_unfinished_work_is_no_answer(make: Make) -> None:
    async with make() as ends:
        work = ends.sender.send()
        with pytest.raises(TypeError, match="is not done"):
            assert work
        await ends.receivers.take()
        await work
        assert await ends.receivers.take(0.0) == [False] * ends.size


@claim()
async def a_pickled_scheme_is_its_configuration_and_can_be_initialised_again(make: Make) -> None:
    async with make(ack_timeout=7.0) as ends:
        await ends.deliver()
        copy: Any = pickle.loads(pickle.dumps(ends.scheme))
        assert copy.options.ack_timeout == 7.0
        with pytest.raises(RuntimeError, match="Must call init_on_sender\\(\\) before get_sender\\(\\)"):
            copy.get_sender()
        del copy
        await ends.deliver(Tied(3.0))
        await ends.expect(2, 3.0)


@claim()
async def closing_twice_is_nothing_and_the_models_keep_what_they_have(make: Make) -> None:
    async with make() as ends:
        await ends.deliver()
        for _ in range(2):
            await ends.scheme.close()
            await ends.receivers.close_ends()
        assert await ends.receivers.values() == [{1.0}] * ends.size


@claim(only=lambda way: way.is_called and way.apply == "map")
async def what_a_call_brings_cannot_be_mapped_nor_anything_else_that_takes_shared_memory(make: Make) -> None:
    refused: tuple[dict[str, Any], ...] = ({"verify": "sha256"}, {"select": "trainable"})
    for option in ({"apply": "map"}, {"slots": 3}, *refused):
        name = next(iter(option))
        given: Any = {"apply": "copy", **option}
        with pytest.raises(
            ConfigError, match=f"Scheme cannot do {name}=.*: its weights come as the argument of a call"
        ):
            async with make(**given):
                pass


@claim(only=lambda way: way.kind == "none")
async def nothing_is_sent_and_every_model_keeps_its_own(make: Make) -> None:
    async with make(model=functools.partial(Tied, 5.0)) as ends:
        await ends.connect()
        for weights in (None, Tied(2.0), {"nowhere": torch.zeros(3)}):
            report = await ends.sender.send(weights)
            assert (report.version, dict(report.per_worker)) == (0, {})
        await ends.sender.send_async(Tied(3.0))
        with pytest.raises(RuntimeError, match="Cannot call send\\(\\) while an async send is pending"):
            ends.sender.send()
        assert (await ends.sender.wait_async()).version == ends.sender.version == 0
        assert await ends.receivers.take(0.0) == [False] * ends.size
        assert await ends.receivers.standing() == [(0, 0, 0)] * ends.size
        await ends.expect(0, 5.0)
        await asyncio.gather(ends.last.hold())
        await ends.last.release()
        for _ in range(2):
            await ends.scheme.close()
            await ends.receivers.close_ends()
        assert await ends.receivers.values() == [{5.0}] * ends.size


class Exported:
    """Weights that are made one by one; counts those that are alive."""

    def __init__(self, value: float) -> None:
        self.value, self.most = value, 0
        self.names = list(Tied().state_dict())
        self._alive: list[weakref.ref[torch.Tensor]] = []

    def __call__(self) -> Iterator[tuple[str, torch.Tensor]]:
        shapes = {name: tensor.shape for name, tensor in Tied().state_dict().items()}
        for name in reversed(self.names):
            tensor = torch.full(shapes[name], self.value)
            self._alive.append(weakref.ref(tensor))
            self.most = max(self.most, sum(each() is not None for each in self._alive))
            yield name, tensor
            del tensor


@claim(only=lambda way: way.kind in ("multiprocess", "linked"))
async def what_a_function_yields_is_sent_and_is_never_there_as_a_whole(make: Make) -> None:
    source = Exported(1.0)
    async with make(source) as ends:
        for version in (1, 2, 3):
            source.value = float(version)
            await ends.deliver()
            await ends.expect(version, float(version))
        assert source.most <= 2, "the last one, and the one that is made"
        for names, words in (
            (source.names[:-1], f"has not yielded '{source.names[-1]}'"),
            ([*source.names, source.names[0]], f"has yielded '{source.names[0]}', a second time"),
        ):
            kept, source.names = source.names, names
            with pytest.raises(WeightMismatch, match=words):
                await ends.sender.send()
            source.names = kept
        source.value = 9.0
        await ends.deliver()
        await ends.expect(4, 9.0)
