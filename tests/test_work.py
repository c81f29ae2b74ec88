"""``Work``: many waiters, threads, loops, cancellation."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
import time
from typing import Any

import pytest

from rlinf_async.errors import ClosedError, DeadlineExceeded
from rlinf_async.work import Work, blocking


class Watched(Work[Any]):
    def __init__(self) -> None:
        super().__init__()
        self.abandoned = 0

    def _describe(self) -> str:
        return "the watched thing"

    def _abandon(self) -> None:
        self.abandoned += 1


async def test_every_waiter_gets_the_result() -> None:
    work: Work[int] = Work()
    waiters = [asyncio.ensure_future(_wait(work)) for _ in range(3)]
    await asyncio.sleep(0)
    work._settle(7)
    assert await asyncio.gather(*waiters) == [7, 7, 7]
    assert await work == 7
    assert work.wait() == 7


async def _wait(work: Work[Any]) -> Any:
    return await work


async def test_every_waiter_gets_the_same_error_without_a_growing_traceback() -> None:
    work: Work[int] = Work()
    error = ValueError("x")
    work._settle(error=error)
    for _ in range(20):
        with pytest.raises(ValueError, match="x") as caught:
            await work
        assert caught.value is error
    depth, frame = 0, error.__traceback__
    while frame is not None:
        depth, frame = depth + 1, frame.tb_next
    assert depth < 6


async def test_it_is_settled_once() -> None:
    work: Work[int] = Work()
    assert work._settle(1)
    assert not work._settle(2)
    assert await work == 1


async def test_the_last_cancelled_waiter_abandons_it_and_nobody_before() -> None:
    work = Watched()
    waiters = [asyncio.ensure_future(_wait(work)) for _ in range(3)]
    await asyncio.sleep(0)
    for waiter in waiters[:2]:
        waiter.cancel()
    await asyncio.gather(*waiters[:2], return_exceptions=True)
    assert work.abandoned == 0
    waiters[2].cancel()
    await asyncio.gather(waiters[2], return_exceptions=True)
    assert work.abandoned == 1
    assert work._waiters == []


async def test_async_wait_and_shield_do_not_own_it() -> None:
    work = Watched()
    with pytest.raises(DeadlineExceeded, match=r"the watched thing was not done within 0.01 s"):
        await work.async_wait(timeout=0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.shield(work)
    assert work.abandoned == 0
    work._settle(1)
    await asyncio.sleep(0)


async def test_a_users_own_timeout_stays_a_timeout() -> None:
    work = Watched()
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.01):
            await work.async_wait(timeout=10)
    assert not isinstance(caught.value, DeadlineExceeded)


def test_a_blocking_deadline_leaves_no_waiter() -> None:
    work = Watched()
    for _ in range(100):
        with pytest.raises(DeadlineExceeded):
            work.wait(timeout=0)
    assert work._waiters == []
    assert work.abandoned == 0


async def test_tasks_and_groups_take_it_several_times() -> None:
    work: Work[int] = Work()
    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(work) for _ in range(3)]
        await asyncio.sleep(0)
        work._settle(3)
    assert [task.result() for task in made] == [3, 3, 3]


async def test_who_closes_it_as_a_coroutine_ends_no_wait_of_others() -> None:
    work: Work[int] = Work()
    waiting = asyncio.create_task(work)
    await asyncio.sleep(0)
    work.close()
    work._settle(3)
    assert await asyncio.wait_for(waiting, 5) == 3


async def test_a_cancelled_task_of_it_abandons_it() -> None:
    work = Watched()
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.abandoned == 1


async def test_then_follows_with_value_and_errors() -> None:
    work: Work[int] = Work()
    doubled = work.then(lambda: 2)
    failing = work.then(lambda: 1 / 0)
    work._settle(1)
    assert await doubled == 2
    with pytest.raises(ZeroDivisionError):
        await failing
    broken: Work[int] = Work()
    broken._settle(error=ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        await broken.then(lambda: 2)


def chain_of(work: Work[Any], links: int = 2000) -> Work[Any]:
    """Works that follow each other, more of them than calls can be nested."""
    for link in range(links):
        work = work.then(lambda link=link: link)
    return work


def test_a_chain_of_any_length_has_a_deadline_and_ends() -> None:
    work: Work[int] = Work()
    work._limit(60)
    following = chain_of(work)
    assert following._remaining() is not None
    work._settle(1)
    assert following.wait() == 1999


def test_a_deadline_that_comes_between_two_looks_at_the_clock_is_met() -> None:
    left = [0.3, 0.0, 0.0011, 0.0009]  # at the start, in the table, and at two looks after that

    class Late(Work[Any]):
        def _remaining(self) -> float:
            return left.pop(0) if left else 0.0

    work = Late()
    work._limit(0.3)
    with pytest.raises(DeadlineExceeded, match="was not done"):
        work.wait()


async def test_a_cancelled_wait_for_what_follows_abandons_what_it_follows() -> None:
    work = Watched()
    following = chain_of(work)
    task = asyncio.create_task(_wait(following))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert work.abandoned == 1
    with pytest.raises(ClosedError, match="was given up"):
        await following


@pytest.mark.parametrize(
    ("error", "is_heard", "is_logged"),
    [(ValueError, False, True), (ValueError, True, False), (ClosedError, False, False)],
)
def test_an_error_that_then_has_got_and_nobody_hears_of_is_logged(
    error: type[Exception], is_heard: bool, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    work: Work[int] = Work()
    following = work.then(lambda: None)
    work._settle(error=error("lost"))
    if is_heard:
        with pytest.raises(error):
            following.wait()
    del following, work
    gc.collect()
    assert ("failed, and was not awaited" in caplog.text) is is_logged


async def test_its_truth_is_an_error_until_it_is_done() -> None:
    work: Work[int] = Work()
    with pytest.raises(TypeError, match="await"):
        bool(work)
    work._settle(0)
    assert not work


async def test_blocking_gives_the_work_inside_a_coroutine() -> None:
    work: Work[int] = Work()
    work._settle(1)
    assert blocking(work) is work


def test_blocking_gives_the_result_elsewhere() -> None:
    work: Work[int] = Work()
    work._settle(1)
    assert blocking(work) == 1


def test_what_blocks_and_is_interrupted_is_given_up() -> None:
    def raise_it(number: int, frame: object) -> None:
        raise InterruptedError

    work = Watched()
    before = signal.signal(signal.SIGUSR1, raise_it)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(InterruptedError):
            blocking(work)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert work.abandoned == 1


def test_many_works_many_loops_many_threads_random_cancels() -> None:
    """Every waiter ends, with the right value or its own cancellation."""
    works: list[Work[int]] = [Work() for _ in range(300)]
    seen: list[int] = []

    def waiting(seed: int) -> None:
        random_ = random.Random(seed)

        async def one(index: int) -> None:
            try:
                async with asyncio.timeout(random_.choice([0.001, 5])):
                    assert await works[index].async_wait() == index
            except TimeoutError:
                return
            seen.append(index)

        async def every() -> None:
            await asyncio.gather(*(one(index) for index in range(len(works))))

        asyncio.run(every())

    threads = [threading.Thread(target=waiting, args=(seed,)) for seed in range(3)]
    threads.append(threading.Thread(target=lambda: [seen.append(work.wait(10)) for work in works]))
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    for index in random.Random(0).sample(range(len(works)), len(works)):
        works[index]._settle(index)
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert all(work._waiters == [] for work in works)
    assert len(seen) >= len(works)
