"""What every scheme promises: one suite, whatever carries the weights and in whatever form."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlinf_async import DistributedWeightSyncScheme
from rlinf_async.errors import ConfigError, DeadlineExceeded
from tests.weights.ends import CALLED, SCHEMES, Tied, both

APPLY = ("copy", "map")
STRATEGIES = ("state_dict", "tensordict")

every_scheme = pytest.mark.parametrize("kind", SCHEMES)
every_way = pytest.mark.parametrize(
    ("kind", "apply", "strategy"),
    [way for way in itertools.product(SCHEMES, APPLY, STRATEGIES) if way[1] == "copy" or way[0] not in CALLED],
)
every_call = pytest.mark.parametrize("kind", CALLED)


@every_way
async def test_what_is_sent_is_what_the_worker_has(kind: str, apply: str, strategy: str) -> None:
    source = Tied(1.0)
    async with both(kind, source=source, apply=apply, strategy=strategy) as ends:
        for version in (1, 2, 3, 4):
            source.fill(10.0 * version)
            report = await ends.deliver()
            assert report.version == version == ends.sender.version
            assert [ack.status for ack in report.per_worker.values()] == ["applied"]
            assert ends.sees == {10.0 * version}
            assert ends.receiver.version == version
        assert not ends.errors


@every_call
async def test_what_a_call_brings_cannot_be_mapped_nor_anything_else_that_takes_shared_memory(kind: str) -> None:
    for option in ({"apply": "map"}, {"delta": "auto"}, {"slots": 3}, {"verify": "crc"}, {"select": "trainable"}):
        name = next(iter(option))
        with pytest.raises(
            ConfigError, match=f"Scheme cannot do {name}=.*: its weights come as the argument of a call"
        ):
            async with both(kind, **option):
                pass


async def test_what_a_job_of_torchs_cannot_do_is_refused_and_what_it_can_map_is_not_copied() -> None:
    with pytest.raises(
        ConfigError, match="DistributedWeightSyncScheme cannot do delta='on': all of every version goes"
    ):
        DistributedWeightSyncScheme(delta="on")
    for apply in APPLY:
        async with both("distributed", apply=apply) as ends:
            weight = ends.model.layers[0].weight
            before = weight.data_ptr()
            await ends.deliver()
            assert ends.model.layers[0].weight is ends.model.head.weight is weight
            assert (weight.data_ptr() == before) == (apply == "copy")


@every_way
async def test_only_the_keys_that_are_named_are_sent(kind: str, apply: str, strategy: str) -> None:
    async with both(kind, apply=apply, strategy=strategy) as ends:
        await ends.deliver()
        await ends.deliver(Tied(2.0), keys=["layers.1", "steps"])
        assert set(ends.model.layers[1].weight.flatten().tolist()) == set(ends.model.steps.tolist()) == {2.0}
        assert set(ends.model.head.weight.flatten().tolist()) == {1.0}
        with pytest.raises(KeyError, match="keys= names 'nowhere', which the weights do not have"):
            await ends.sender.send(Tied(3.0), keys=["nowhere"])
        assert ends.sees == {1.0, 2.0}


@every_way
async def test_who_is_connected_has_the_trainers_weights(kind: str, apply: str, strategy: str) -> None:
    async with both(kind, apply=apply, strategy=strategy, source=Tied(7.0)) as ends:
        sending, receiving = ends.schemes
        await asyncio.gather(sending.connect(timeout=20), receiving.connect(timeout=20))
        assert ends.sees == {7.0}
        assert ends.sender.version == ends.receiver.version == 1
        await asyncio.gather(sending.connect(timeout=20), receiving.connect(timeout=20))
        assert ends.receiver.version == 1, "they have met"
        await ends.deliver(Tied(8.0))
        assert (ends.sees, ends.receiver.version) == ({8.0}, 2)


@pytest.mark.parametrize("kind", ["multiprocess", "shared memory", "distributed"])
async def test_who_connects_to_nobody_is_told_when_its_time_is_over(kind: str) -> None:
    async with both(kind) as ends:
        with pytest.raises(DeadlineExceeded, match="'policy'"):
            await ends.schemes[1].connect(timeout=0.05)
        with pytest.raises(DeadlineExceeded):
            await ends.schemes[0].connect(timeout=0.05)


@every_way
async def test_what_becomes_of_the_source_once_it_is_staged_is_never_seen(kind: str, apply: str, strategy: str) -> None:
    source = Tied(1.0)
    async with both(kind, source=source, apply=apply, strategy=strategy) as ends:
        if kind in CALLED:
            pytest.skip("the worker is an object of this process, which has applied them by then")
        await ends.sender.send_async()
        source.fill(99.0)
        await ends.take()
        await ends.sender.wait_async()
        assert ends.sees == {1.0}
        source.fill(98.0)
        assert ends.sees == {1.0}


@every_way
async def test_what_does_not_fit_is_refused_whole_and_the_sender_hears_why(
    kind: str, apply: str, strategy: str
) -> None:
    source = Tied(5.0, width=4)
    async with both(kind, model=Tied(2.0), source=source, apply=apply, strategy=strategy) as ends:
        with pytest.raises(Exception, match="weight") as caught:
            await ends.deliver()
        assert "worker 0 does not have version 1" in str(getattr(caught.value, "__notes__", ""))
        assert ends.sees == {2.0}
        assert ends.receiver.version == 0


@every_scheme
async def test_a_module_a_dict_and_a_path_can_be_sent(kind: str) -> None:
    async with both(kind) as ends:
        await ends.deliver(Tied(2.0))
        assert ends.sees == {2.0}
        await ends.deliver({name: torch.full_like(tensor, 3.0) for name, tensor in Tied().state_dict().items()})
        assert ends.sees == {3.0}
        with pytest.raises(ValueError, match="Cannot resolve string reference 'policy' without context"):
            ends.sender.send("policy")


@every_scheme
async def test_a_second_send_is_refused_while_one_is_pending(kind: str) -> None:
    async with both(kind) as ends:
        with pytest.raises(RuntimeError, match="No async send is pending"):
            ends.sender.wait_async()
        await ends.sender.send_async()
        with pytest.raises(RuntimeError, match="Cannot call send\\(\\) while an async send is pending"):
            ends.sender.send()
        with pytest.raises(RuntimeError, match="Cannot call send_async\\(\\) again while a previous send is pending"):
            ends.sender.send_async()
        await ends.take()
        await ends.sender.wait_async()
        await ends.deliver()
        assert ends.sees == {1.0}


@every_scheme
async def test_an_unknown_worker_is_refused_before_anything_is_sent(kind: str) -> None:
    async with both(kind) as ends:
        if kind == "module transform":
            pytest.skip("all workers share one host")
        with pytest.raises(ValueError, match="Worker 5 not registered"):
            ends.sender.send(worker_ids=[0, 5])
        assert not await ends.take(0.05)
        assert ends.sees == {0.0}
        assert ends.sender.version == 0


@every_scheme
async def test_versions_only_go_up(kind: str) -> None:
    async with both(kind) as ends:
        await ends.deliver(version=7)
        assert ends.receiver.version == (1 if kind in CALLED else 7), "a call does not say it, and they are counted"
        for version in (7, 3):
            with pytest.raises(ValueError, match=f"version {version} is not after version 7"):
                ends.sender.send(version=version)
        assert (await ends.deliver()).version == 8


@every_scheme
async def test_nobody_reads_while_weights_are_applied(kind: str) -> None:
    async with both(kind) as ends:
        await ends.deliver()
        work = ends.sender.send(Tied(2.0))
        async with ends.receiver.reading() as version:
            taking = asyncio.create_task(ends.take())
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert (ends.sees, version) == ({1.0}, 1)
        await work
        await taking
        async with ends.receiver.reading() as version:
            assert (ends.sees, version) == ({2.0}, 2)


@every_scheme
async def test_an_unfinished_work_is_no_answer(kind: str) -> None:
    async with both(kind) as ends:
        work = ends.sender.send()
        with pytest.raises(TypeError, match="is not done"):
            assert work
        await asyncio.gather(ends.take(), work)
        received = ends.receiver.receive(0.0)
        assert await received is False
        assert not received


@every_scheme
async def test_a_version_can_be_waited_for_and_the_wait_has_an_end(kind: str) -> None:
    async with both(kind) as ends:
        work = ends.sender.send()
        others = [ends.take()] if kind == "distributed" else []  # over a link, whoever waits receives
        await asyncio.gather(ends.receiver.wait_version(1, timeout=20), work, *others)
        assert ends.receiver.version == 1
        assert ends.receiver.staleness == 0
        await ends.receiver.wait_fresh(0, timeout=1)
        with pytest.raises(DeadlineExceeded):
            await ends.receiver.wait_version(2, timeout=0.05)


@pytest.mark.parametrize("kind", ["multiprocess", "shared memory"])
async def test_a_version_that_another_task_receives_ends_the_wait_too(kind: str) -> None:
    """The other task has taken it and waits for a reader to leave; only then is it waited for."""
    async with both(kind) as ends, asyncio.timeout(30):
        async with ends.receiver.reading():
            work = ends.sender.send()
            taking = asyncio.create_task(ends.take(20.0))
            while ends.receiver._subscriber is None or not ends.receiver._subscriber._is_taking:
                await asyncio.sleep(0)
            waiting = ends.receiver.wait_version(1, timeout=60)
            for _ in range(5):
                await asyncio.sleep(0)
            assert not waiting.done()
        await waiting
        assert ends.receiver.version == 1
        assert await taking
        await work


@every_scheme
async def test_a_pickled_scheme_is_its_configuration_and_can_be_initialised_again(kind: str) -> None:
    async with both(kind, ack_timeout=7.0) as ends:
        await ends.deliver()
        copy: Any = pickle.loads(pickle.dumps(ends.schemes[0]))
        assert copy.options.ack_timeout == 7.0
        with pytest.raises(RuntimeError, match="Must call init_on_sender\\(\\) before get_sender\\(\\)"):
            copy.get_sender()
        del copy
        await ends.deliver(Tied(3.0))
        assert ends.sees == {3.0}


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


@every_scheme
async def test_closing_twice_is_nothing_and_the_model_keeps_what_it_has(kind: str) -> None:
    async with both(kind) as ends:
        await ends.deliver()
        for scheme in ends.schemes * 2:
            await scheme.close()
        assert ends.sees == {1.0}


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
