"""``wait_all``: results in order; the first failure ends it and cancels the others, whose errors are its notes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from rlinf_async import ClosedError, Cluster, NodePlacementStrategy, wait_all
from rlinf_async._group.wait_all import fold
from rlinf_async._waits import unobserved_errors
from rlinf_async.work import Work
from tests._support.until import until
from tests._support.workers import Plain

pytestmark = pytest.mark.shared_cluster


@pytest.fixture
def three(cluster: Cluster) -> Iterator[Any]:
    group = Plain.create_group().launch(cluster, NodePlacementStrategy([0] * 3), name="three").wait_ready()
    yield group
    group.close()


def test_results_come_in_order(three: Any) -> None:
    handles = [three[rank].sleep(0.1 - 0.05 * rank) for rank in range(3)]
    assert wait_all(*handles) == [[0.1], [0.05], [0.0]]
    assert wait_all(*handles, three.hello()) == [[0.1], [0.05], [0.0], [0, 1, 2]]
    assert wait_all() == []


async def test_it_is_awaited_in_a_coroutine(three: Any) -> None:
    assert await wait_all(three[0].hello(), three[1].hello()) == [[0], [1]]
    sleeping = three[0].sleep(60)
    await three[0].noted()  # it has begun
    with pytest.raises(ValueError, match="as told"):
        await wait_all(sleeping, three[1].fail([1]))
    assert await three[0].was_cancelled() == [True]


def test_the_first_failure_cancels_the_others_and_is_raised(three: Any) -> None:
    waiting = [three[0].sleep(60), three[1].sleep(60)]
    three[0:2].noted().wait()  # both have begun
    with pytest.raises(ValueError, match="as told"):
        wait_all(*waiting, three[2].fail([2]))
    assert three[0:2].was_cancelled().wait() == [True, True]
    for handle in waiting:
        with pytest.raises(ClosedError):
            handle.wait()


def test_what_else_has_failed_stands_in_the_notes(three: Any) -> None:
    first, second = three[0].fail([0], "the one"), three[1].fail([1], "the other")
    until(lambda: first.done() and second.done())
    with pytest.raises(ValueError, match="the one") as caught:
        wait_all(first, second, three[2].sleep(60))
    note = caught.value.__notes__[-1]
    assert note == "other failures of the same wait_all():\n    three.fail() on 1 rank: ValueError: the other"
    assert unobserved_errors.lines() == []


async def test_a_call_that_something_else_waits_for_goes_on_when_the_wait_is_cancelled(three: Any) -> None:
    handle = three[0].sleep(0.3)
    other = asyncio.ensure_future(asyncio.gather(handle))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await wait_all(handle, three[1].sleep(60))
    assert await other == [[0.3]]
    assert await three[0:2].was_cancelled() == [False, True]


def test_a_wait_that_was_forgotten_hides_no_error(three: Any) -> None:
    async def forget() -> None:
        wait_all(three[0].fail([0], "forgotten"))

    asyncio.run(forget())
    until(lambda: unobserved_errors.lines())
    assert "forgotten" in unobserved_errors.lines()[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [([1], "got 1 (int) in place 1: pass what calls return"), ([[]], r"write wait_all(*handles)")],
)
def test_what_cannot_be_waited_for_is_refused(three: Any, given: list[Any], said: str) -> None:
    with pytest.raises(TypeError) as caught:
        wait_all(three[0].hello(), *given)
    assert said in str(caught.value)


def test_folding_says_how_many_more() -> None:
    assert fold(["a", "b"]) == "a, b"
    assert fold(map(str, range(10)), most=3) == "0, 1, 2 and 7 more"


async def test_what_has_arrived_goes_back_when_the_wait_is_cancelled_before_it_has_it() -> None:
    class Receiving(Work[int]):
        given_back = 0

        def _lose_interest(self) -> None:
            self.given_back += self._done
            super()._lose_interest()

    parts = [Receiving(), Receiving()]
    both = wait_all(*parts)
    waiting = asyncio.ensure_future(both)
    await asyncio.sleep(0)
    for part in parts:
        part._settle(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [part.given_back for part in parts] == [1, 1]
    with pytest.raises(ClosedError, match="given up"):
        await both
