"""Streams in the simulated cluster: the end of a loop closes the remote generator, whoever keeps the error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rlinf_async import ClosedError, Cluster, Worker, concurrent
from rlinf_async.stream import _NextItem
from rlinf_async.testing import SimCluster, sleep


class Source(Worker):
    is_open = False

    async def count(self) -> AsyncIterator[int]:
        self.is_open = True
        try:
            yield 1
            await asyncio.sleep(600)
        finally:
            self.is_open = False

    @concurrent
    async def has_open(self) -> bool:
        return self.is_open


async def read(stream: Any) -> None:
    async for _ in stream:
        pass


@pytest.mark.parametrize("of_any", [False, True])
def test_a_loop_that_was_cancelled_closes_its_stream_though_its_task_is_kept(of_any: bool) -> None:
    async def main() -> list[bool]:
        async with Cluster(log_to_driver=False) as cluster:
            group = Source.create_group().launch(cluster)
            task = asyncio.ensure_future(read((group.any() if of_any else group).count()))
            await asyncio.sleep(1)
            assert await group.has_open() == [True]
            task.cancel()
            await asyncio.sleep(1)
            assert task.cancelled()
            return await group.has_open()

    assert SimCluster().run(main) == [False]


def test_an_iterator_that_only_a_wait_refers_to_gives_its_item() -> None:
    async def main() -> tuple[int, int]:
        async with Cluster(log_to_driver=False) as cluster:
            group = Source.create_group().launch(cluster)
            found: tuple[int, int] = await anext(aiter(group.count()))
            return found

    assert SimCluster().run(main) == (0, 1)


def test_a_blocking_loop_that_was_interrupted_closes_its_stream_though_the_error_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(item: object) -> None:
        sleep(1)
        raise KeyboardInterrupt

    def main() -> list[bool]:
        with Cluster(log_to_driver=False) as cluster:
            group = Source.create_group().launch(cluster)
            with monkeypatch.context() as patch:
                patch.setattr(_NextItem, "wait", interrupt)
                with pytest.raises(KeyboardInterrupt) as kept:
                    list(group.count())
            sleep(1)
            assert kept.value.__traceback__ is not None
            return group.has_open().wait()

    assert SimCluster().run(main) == [False]


@pytest.mark.parametrize("of_any", [False, True])
def test_the_close_of_a_group_is_no_end_of_its_streams(of_any: bool) -> None:
    async def main() -> None:
        async with Cluster(log_to_driver=False) as cluster:
            group = Source.create_group().launch(cluster, name="source")
            stream = group.any().count() if of_any else group.count()
            reading = asyncio.create_task(read(stream))
            await asyncio.sleep(0.5)
            await group.close()
            with pytest.raises(ClosedError, match="group"):
                await asyncio.wait_for(reading, 5)

    SimCluster().run(main)
