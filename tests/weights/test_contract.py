"""Conformance suite of schemes, with both ends in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlinf_async import DistributedWeightSyncScheme
from rlinf_async.errors import ConfigError, DeadlineExceeded
from tests.weights.contract.claims import Ends, Here, Receiving
from tests.weights.contract.suite import CLAIMS, Make, Way, claims_of, ways_of
from tests.weights.ends import CALLED, SCHEMES, Tied, both

every_scheme = pytest.mark.parametrize("kind", SCHEMES)


@contextlib.asynccontextmanager
async def opened(way: Way, source: Any, make: Callable[[], Any], **options: Any) -> AsyncIterator[Ends]:
    model, receiving = make(), Receiving()
    async with both(way.kind, model, source, strategy=way.strategy, **options) as ends:
        sending, scheme = ends.schemes
        receiving.put(scheme, model)
        receivers = Here(receiving)
        try:
            yield Ends(sending, receivers, receivers, 1)
        finally:
            await sending.close()
            await receiving.close_ends()


@pytest.mark.parametrize(("way", "name"), [(way, name) for way in ways_of(SCHEMES) for name in claims_of(way)], ids=str)
async def test_contract(way: Way, name: str) -> None:
    await CLAIMS[name](Make(way, opened))


async def test_what_a_job_of_torchs_cannot_do_is_refused_and_what_it_can_map_is_not_copied() -> None:
    with pytest.raises(ConfigError, match="DistributedWeightSyncScheme cannot do slots=3: all of every version goes"):
        DistributedWeightSyncScheme(slots=3)
    for apply in ("copy", "map"):
        async with both("distributed", apply=apply) as ends:
            weight = ends.model.layers[0].weight
            before = weight.data_ptr()
            await ends.deliver()
            assert ends.model.layers[0].weight is ends.model.head.weight is weight
            assert (weight.data_ptr() == before) == (apply == "copy")


@pytest.mark.parametrize("kind", ["multiprocess", "shared memory", "distributed"])
async def test_who_connects_to_nobody_is_told_when_its_time_is_over(kind: str) -> None:
    async with both(kind) as ends:
        with pytest.raises(DeadlineExceeded, match="'policy'"):
            await ends.schemes[1].connect(timeout=0.05)
        with pytest.raises(DeadlineExceeded):
            await ends.schemes[0].connect(timeout=0.05)


@every_scheme
async def test_what_was_received_can_be_asked_once_it_is_over(kind: str) -> None:
    async with both(kind) as ends:
        await ends.deliver()
        received = ends.receiver.receive(0.0)
        assert await received is False
        assert not received


@pytest.mark.parametrize("kind", ["multiprocess", "shared memory"])
async def test_a_version_that_another_task_receives_ends_the_wait_too(kind: str) -> None:
    """The other task has taken it and waits for a reader to leave; only then is it waited for."""
    async with both(kind) as ends, asyncio.timeout(30):
        async with ends.receiver.reading():
            work = ends.sender.send()
            taking = asyncio.create_task(ends.take(20.0))
            while not ends.receiver._subscriber._is_taking:
                await asyncio.sleep(0)
            waiting = ends.receiver.wait_version(1, timeout=60)
            for _ in range(5):
                await asyncio.sleep(0)
            assert not waiting.done()
        await waiting
        assert ends.receiver.version == 1
        assert await taking
        await work


async def test_another_sender_and_another_receiver_go_on_with_the_same_store() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for value in (1.0, 2.0, 3.0):
        sending, receiving, model = DistributedWeightSyncScheme(), DistributedWeightSyncScheme(), Tied()
        sending.init_on_sender("policy", store=store, num_workers=1, source_model=Tied(value))
        receiving.init_on_worker("policy", store=store, rank=1, model=model)
        async with asyncio.timeout(60):
            await asyncio.gather(sending.connect(), receiving.connect())
        assert model.values() == {value}
        if value == 2.0:
            await sending.get_sender().send_async(Tied(9.0))  # which nobody takes
        else:
            receiving.get_receiver().serve()
            for _ in range(20):
                await asyncio.sleep(0.005)  # it waits for the next
        await sending.close()
        await receiving.close()


def test_without_a_loop_everything_blocks_and_gives_torchrls_values() -> None:
    for kind in SCHEMES:
        model = Tied()
        with SCHEMES[kind](model, Tied(1.0)) as ends:
            sender, receiver = ends.sender, ends.receiver
            if kind in CALLED:
                for scheme in ends.schemes:
                    scheme.close()
                continue
            sender.send_async()
            assert receiver.receive(5.0) is True
            assert sender.wait_async().version == 1
            assert receiver.receive(0.0) is False
            assert model.values() == {1.0}
            for scheme in ends.schemes:
                assert scheme.close() is None
