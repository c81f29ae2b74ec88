"""What every scheme promises: one suite, whatever carries the weights and in whatever form."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from typing import Any

import pytest
import torch

from rlinf_async.errors import DeadlineExceeded
from tests.weights.ends import SCHEMES, Tied, both

APPLY = ("copy", "map")
STRATEGIES = ("state_dict", "tensordict")

every_scheme = pytest.mark.parametrize("kind", SCHEMES)
every_way = pytest.mark.parametrize(("kind", "apply", "strategy"), list(itertools.product(SCHEMES, APPLY, STRATEGIES)))


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


@every_way
async def test_what_becomes_of_the_source_once_it_is_staged_is_never_seen(kind: str, apply: str, strategy: str) -> None:
    source = Tied(1.0)
    async with both(kind, source=source, apply=apply, strategy=strategy) as ends:
        if kind in ("worker", "module transform"):
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
    async with both(kind) as ends:
        async with asyncio.timeout(10):
            await asyncio.gather(ends.take(2.0), ends.receiver.wait_version(1, timeout=60), ends.sender.send())
        assert ends.receiver.version == 1


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
            if kind in ("worker", "module transform"):
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
