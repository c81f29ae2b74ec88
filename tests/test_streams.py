"""Async generator methods: merged items, credit, closing."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_async import Cluster, NodePlacementStrategy
from tests._support.workers import Plain

pytestmark = pytest.mark.shared_cluster

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture
def group(cluster: Cluster) -> Iterator[Any]:
    group = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0] * 3), name="stream").wait_ready()
    yield group
    group.close()


def _is_closed(log: list[Any]) -> bool:
    """A generator that was cancelled before its first step has not begun."""
    return not log or log[-1] == "closed"


async def test_items_of_all_ranks_come_in_each_ranks_order(group: Any) -> None:
    got: dict[int, list[int]] = {0: [], 1: [], 2: []}
    async for rank, item in group.count(100):
        got[rank].append(item)
    assert got == {rank: list(range(100)) for rank in range(3)}


def test_a_stream_is_iterated_without_a_loop_too(group: Any) -> None:
    assert sorted(group.count(2)) == [(rank, item) for rank in range(3) for item in range(2)]


async def test_a_stream_made_in_the_loop_header_closes_when_the_loop_is_left(group: Any) -> None:
    async for _rank, item in group.count(1_000_000):
        if item == 3:
            break
    for _ in range(50):
        logs = await group.noted()
        if all(_is_closed(log) for log in logs):
            break
    assert all(_is_closed(log) for log in logs)


async def test_a_loop_that_is_left_lets_go_of_what_has_come_before_anything_else_runs(group: Any) -> None:
    stream = group[0].count(3)
    items = aiter(stream)
    await stream._streaming._ended.async_wait(timeout=3)
    assert len(stream._streaming._items) == 3
    del items
    assert not stream._streaming._items


async def _until_all(group: Any, condition: Callable[[list[Any]], bool]) -> None:
    async with asyncio.timeout(10):
        while not all(map(condition, await group.noted())):
            pass


def _drop(streams: list[Any]) -> None:
    streams.clear()


def _drop_in_a_circle(streams: list[Any]) -> None:
    circle: list[Any] = [*streams]
    circle.append(circle)
    streams.clear()
    del circle
    collecting = threading.Thread(target=gc.collect)
    collecting.start()
    collecting.join()


@pytest.mark.parametrize("drop", [_drop, _drop_in_a_circle])
async def test_streams_that_are_dropped_unread_are_closed(group: Any, drop: Callable[[list[Any]], None]) -> None:
    streams = [group.count(100) for _ in range(10)]
    await _until_all(group, lambda log: log.count(0) == 10)
    drop(streams)
    await _until_all(group, lambda log: log.count("closed") == 10)


async def test_a_stream_that_is_dropped_before_its_group_is_there_never_begins(cluster: Cluster) -> None:
    group: Any = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0]), name="early")
    group.count(100)
    await group.count(1).aclose()
    await group.hello()
    await _until_all(group, _is_closed)
    group.close()


async def test_an_error_of_a_stream_that_was_dropped_unread_is_told(
    group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stream = group[0].fail_when_closed()
    await _until_all(group[0], lambda log: log == ["begun"])
    del stream
    async with asyncio.timeout(10):
        while "ValueError: the file cannot be closed" not in caplog.text:
            await asyncio.sleep(0.05)
    assert "failed, and is not awaited yet: stream.fail_when_closed()" in caplog.text


def test_a_stream_that_a_script_still_has_at_its_end_does_no_harm() -> None:
    script = """
from rlinf_async import Cluster, NodePlacementStrategy
from tests._support.workers import Plain
cluster = Cluster(num_nodes=1, log_to_driver=False)
group = Plain.create_group().launch(cluster, NodePlacementStrategy([0]), name="g").wait_ready()
streams = [group.count(100), iter(group.count(100))]
streams.append(streams)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("rlinf run")]
    assert (done.returncode, lines) == (0, [])


async def test_awaiting_a_stream_says_to_iterate(group: Any) -> None:
    stream = group.count(1)
    with pytest.raises(TypeError, match="async for rank, item"):
        await stream
    await stream.aclose()


async def test_a_stream_is_iterated_once(group: Any) -> None:
    stream = group.count(1)
    assert len([item async for item in stream]) == 3
    with pytest.raises(RuntimeError, match="iterated over before"):
        aiter(stream)
