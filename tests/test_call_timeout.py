"""Deadlines of a group's calls: ``launch(call_timeout=)`` and ``RLINF_CALL_TIMEOUT_S``."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rlinf_async import (
    Cluster,
    DeadlineExceeded,
    NodePlacementStrategy,
    Worker,
    WorkerGroup,
    each,
    settings,
    wait_all,
)
from tests._support.workers import Plain

pytestmark = pytest.mark.shared_cluster

TIMEOUT_S = 0.4


class Slow(Plain):
    def __init__(self, seconds: float = 0) -> None:
        super().__init__()
        time.sleep(seconds)

    async def every(self, seconds: float, count: int, then: float) -> AsyncIterator[int]:
        try:
            for item in range(count):
                await asyncio.sleep(seconds)
                yield item
            await asyncio.sleep(then)
        finally:
            self.log.append("closed")


@pytest.fixture
def two(cluster: Cluster) -> Iterator[Any]:
    group = Slow.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="two", call_timeout=TIMEOUT_S)
    yield group.wait_ready()
    group.close()


def _timer_is_set(group: Any) -> bool:
    return bool(group._members.deadlines._timer.locked())


def test_a_coroutine_that_takes_too_long_is_cancelled_and_the_error_says_all(two: Any) -> None:
    since = time.monotonic()
    with pytest.raises(DeadlineExceeded) as caught:
        two.sleep(each([0, 30])).wait()
    assert TIMEOUT_S <= time.monotonic() - since < 2
    text = str(caught.value)
    pid = two.worker_info_list[1].worker.pid
    assert text.startswith("two.sleep() was not done within 0.4 s (call_timeout= of launch()): rank 1 of 'two' had not")
    for part in (f"(pid {pid})", "rank 1 of 'two' is in sleep (0 s)", "fix: ", settings.CALL_TIMEOUT_S.variable):
        assert part in text
    assert isinstance(caught.value, TimeoutError)
    assert two.run("self.cancelled").wait() == [False, True]


def test_a_def_goes_on_and_its_late_answer_is_dropped(two: Any) -> None:
    handle = two.block(each([0, 2]))
    with pytest.raises(DeadlineExceeded, match="rank 1 of 'two' had not answered"):
        handle.wait()
    assert handle[0].wait() == 0
    with pytest.raises(DeadlineExceeded):
        handle[1].wait()
    with pytest.raises(DeadlineExceeded):
        two.hello().wait()  # behind the one that blocks
    time.sleep(1.3)
    assert two.hello().wait() == [0, 1]
    assert not two._members.open


async def test_all_views_of_a_call_end_with_it(two: Any) -> None:
    handle = two.sleep(each([0, 30]))
    got = []
    with pytest.raises(DeadlineExceeded):  # noqa: PT012
        async for rank, _ in handle.as_completed():
            got.append(rank)
    assert got == [0]
    quick, late = await two.sleep(each([0, 30])).outcomes()
    assert quick.value == 0
    assert isinstance(late.error, DeadlineExceeded)
    with pytest.raises(DeadlineExceeded):
        await wait_all(two.hello(), two.sleep(30))


def test_a_stopped_rank_is_named(two: Any) -> None:
    pid = two.worker_info_list[0].worker.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineExceeded, match=r"(?s)rank 0 of .*rank 0 of 'two' is stopped"):
            two.hello().wait()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert two.hello().wait() == [0, 1]


def test_threads_that_call_at_once_set_one_timer(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    group: Any = Slow.create_group().launch(cluster, name="threads", call_timeout=30).wait_ready()
    timers: list[Any] = []
    monkeypatch.setattr(cluster._client, "later", lambda *timer: timers.append(timer))
    try:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda _: group.hello().wait(), range(40))) == [[0]] * 40
        assert len(timers) == 1
    finally:
        monkeypatch.undo()
        group.close()


def test_an_item_that_comes_while_daemons_are_asked_ends_no_stream(two: Any) -> None:
    stream = two.every(0.05, 2, 0)
    waited_for = stream._streaming._next()
    waited_for.wait()
    stream._streaming._expire(waited_for, "")  # the daemons' answer
    assert sorted(stream) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_the_constructors_do_not_count(cluster: Cluster) -> None:
    group: Any = Slow.create_group(0.9).launch(cluster, name="late", call_timeout=0.6)
    try:
        early = group.sleep(0.2)
        assert list(group.every(0, 1, 0)) == [(0, 0)]
        assert early.wait() == [0.2]
        with pytest.raises(DeadlineExceeded):
            group.sleep(30).wait()
    finally:
        group.close()


def test_the_setting_is_for_every_group_and_launch_wins(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.CALL_TIMEOUT_S.variable, "0.2")
    limited: Any = Slow.create_group().launch(cluster, name="limited").wait_ready()
    free: Any = Slow.create_group().launch(cluster, name="free", call_timeout=0).wait_ready()
    found: Any = WorkerGroup.from_group_name(Slow, "free", cluster=cluster)
    try:
        for group in (limited, found):
            with pytest.raises(DeadlineExceeded, match=r"within 0.2 s \(RLINF_CALL_TIMEOUT_S in the environment\)"):
                group.sleep(30).wait()
        assert free.sleep(0.4).wait() == [0.4]
        assert not _timer_is_set(free)
    finally:
        limited.close()
        free.close()


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, True, "30", [1]])
def test_a_value_that_cannot_be_is_named_with_its_key_and_fix(cluster: Cluster, value: Any) -> None:
    with pytest.raises(ValueError, match="call_timeout=") as caught:
        Slow.create_group().launch(cluster, call_timeout=value)
    for part in (repr(value), "0 for no deadline", settings.CALL_TIMEOUT_S.variable):
        assert part in str(caught.value)


def test_worker_methods_have_the_deadline_of_the_group_that_they_launch(cluster: Cluster) -> None:
    group: Any = Parent.create_group().launch(cluster, name="parent").wait_ready()
    try:
        with pytest.raises(DeadlineExceeded, match=r"child.sleep\(\) was not done within 0.2 s"):
            group.try_child().wait()
    finally:
        group.close()


class Parent(Worker):
    async def try_child(self) -> None:
        async with Cluster() as cluster:
            child: Any = await Slow.create_group().launch(cluster, name="child", call_timeout=0.2)
            await child.sleep(30)
