"""Work of a routed batch: ends with the first failed part, or when the whole is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._messaging.route_work import AsyncRouteWork
from rlinf_async._messaging.routes import Route, Routes
from rlinf_async.errors import ConfigError
from rlinf_async.work import Work


class Sending(Work[Any]):
    """A part that says how often it was given up."""

    given_up = 0

    def _abandon(self) -> None:
        self.given_up += 1


def whole_of(count: int) -> tuple[AsyncRouteWork, list[Sending]]:
    work, parts = AsyncRouteWork("send_to() to 'actor'"), [Sending() for _ in range(count)]
    work.begin(parts)
    return work, parts


async def give_up(work: AsyncRouteWork) -> None:
    waiting = asyncio.ensure_future(work)
    await asyncio.sleep(0)  # it waits
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_it_is_done_when_all_parts_are() -> None:
    work, parts = whole_of(2)
    parts[1]._settle()
    assert not work.done()
    parts[0]._settle()
    assert work.wait() is None
    assert [part.given_up for part in parts] == [0, 0]


def test_it_is_described_by_the_first_part_that_it_waits_for() -> None:
    work, parts = whole_of(2)
    parts[0]._settle()
    parts[1]._describe = lambda: "put() to channel 'obs' (key 'k')"  # type: ignore[method-assign]
    assert work._describe() == "send_to() to 'actor': put() to channel 'obs' (key 'k')"
    parts[1]._settle()
    assert work._describe() == "send_to() to 'actor'"


def test_the_first_part_that_fails_fails_it_and_the_others_are_given_up_once() -> None:
    work, parts = whole_of(4)
    parts[3]._settle()
    parts[1]._settle(error=ValueError("rank 1 is gone"))
    parts[2]._settle(error=ValueError("and rank 2"))
    with pytest.raises(ValueError, match="rank 1 is gone"):
        work.wait()
    assert [part.given_up for part in parts] == [1, 0, 1, 0]


async def test_its_unfinished_parts_are_given_up_when_nobody_waits_for_it() -> None:
    work, parts = whole_of(3)
    parts[0]._settle()
    await give_up(work)
    assert [part.given_up for part in parts] == [0, 1, 1]


async def test_parts_that_come_after_it_was_given_up_are_given_up_at_once() -> None:
    work, parts = AsyncRouteWork("recv_from() from 'rollout'"), [Sending(), Sending()]
    await give_up(work)
    work.begin(parts)
    assert [part.given_up for part in parts] == [1, 1]


async def test_what_is_given_up_before_its_group_is_known_never_begins() -> None:
    class Exchange:
        def find_group(self, group: str) -> Work[int]:
            return size

    size: Work[int] = Work()
    started: list[int] = []
    routes, work = Routes(None, Exchange()), AsyncRouteWork("send_to() to 'actor'")  # type: ignore[arg-type]  # unused
    routes._begin("actor", work, started.append)
    await give_up(work)
    size._settle(2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert started == []


def test_an_error_that_ends_the_wait_for_a_group_is_its_callers_and_nothing_begins_later() -> None:
    class Interrupted(Work[int]):
        """A wait that a signal handler ends."""

        def _wait_for_thread(self, timeout: float | None) -> None:
            raise TimeoutError("the user's alarm")

    size = Interrupted()
    started: list[int] = []
    routes = Routes(None, SimpleNamespace(find_group=lambda group: size))  # type: ignore[arg-type]
    work = AsyncRouteWork("send_to() to 'actor'")
    with pytest.raises(TimeoutError, match="the user's alarm"):
        routes._begin("actor", work, started.append)
    size._settle(2)
    routes._advance("actor")
    assert started == []


def test_two_threads_start_what_is_known_once() -> None:
    class Size(Work[int]):
        def done(self) -> bool:
            if threading.current_thread() is threading.main_thread():
                other.start()
                other.join(0.2)
            return super().done()

    routes, started = Routes(None, None), []  # type: ignore[arg-type, var-annotated]  # unused
    other = threading.Thread(target=routes._advance, args=("actor",))
    sizes: list[Work[int]] = [Size(), Work()]
    sizes[0]._settle(2)
    routes._waiting["actor"] = deque((size, AsyncRouteWork("send_to()"), started.append) for size in sizes)
    routes._advance("actor")
    other.join(10)
    assert started == [2]


def test_a_batch_behind_one_that_was_given_up_is_sent() -> None:
    routes, started = Routes(None, None), []  # type: ignore[arg-type, var-annotated]  # unused
    given_up, size = AsyncRouteWork("send_to()"), Work[int]()
    given_up.fail(ConfigError("a part is missing"))
    size._settle(2)
    works = [given_up, AsyncRouteWork("send_to()")]
    routes._waiting["actor"] = deque((size, work, started.append) for work in works)
    routes._advance("actor")
    assert started == [2]


class Receiving(Sending):
    """A part whose message goes back where nobody takes it."""

    given_back = 0

    def _lose_interest(self) -> None:
        self.given_back += self._done
        super()._lose_interest()


@pytest.mark.parametrize("others", [0, 1])
async def test_what_has_arrived_goes_back_when_the_last_waiter_is_cancelled_before_it_has_it(others: int) -> None:
    work, parts = AsyncRouteWork("recv_from() from 'rollout'"), [Receiving(), Receiving()]
    work.begin(parts, sum)
    last, *rest = [asyncio.ensure_future(work) for _ in range(1 + others)]
    await asyncio.sleep(0)  # they wait
    for part in parts:
        part._settle(1)
    last.cancel()
    with pytest.raises(asyncio.CancelledError):
        await last
    assert await asyncio.gather(*rest) == [2] * others
    assert [part.given_back for part in parts] == [not others] * 2


async def test_a_part_that_somebody_else_waits_for_goes_on() -> None:
    work, parts = whole_of(2)
    other = asyncio.ensure_future(parts[0])
    await asyncio.sleep(0)
    await give_up(work)
    assert [part.given_up for part in parts] == [0, 1]
    parts[0]._settle("sent")
    assert await other == "sent"


def test_what_has_arrived_is_put_together_once_and_a_failure_of_that_is_its_own() -> None:
    calls: list[list[Any]] = []
    work, parts = AsyncRouteWork("recv_from() from 'rollout'"), [Sending(), Sending()]
    work.begin(parts, lambda values: calls.append(values) or sum(values))
    for number, part in enumerate(parts, 1):
        part._settle(number)
    assert [work.wait(), work.wait()] == [3, 3]
    assert calls == [[1, 2]]
    bad = AsyncRouteWork("recv_from() from 'rollout'")
    bad.begin([], lambda values: 1 // len(values))
    with pytest.raises(ZeroDivisionError):
        bad.wait()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, asyncio.CancelledError])
def test_a_merge_that_is_interrupted_does_not_leave_none_as_the_result(interruption: type[BaseException]) -> None:
    def merge(values: list[Any]) -> Any:
        raise interruption

    work = AsyncRouteWork("recv_from() from 'rollout'")
    work.begin([], merge)
    for _ in range(2):
        with pytest.raises(interruption):
            work.wait()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, asyncio.CancelledError])
def test_a_split_that_is_interrupted_ends_its_work(interruption: type[BaseException]) -> None:
    def start(world_size: int) -> None:
        raise interruption

    routes, size, work = Routes(None, None), Work[int](), AsyncRouteWork("send_to()")  # type: ignore[arg-type]  # unused
    size._settle(2)
    routes._waiting["actor"] = deque([(size, work, start)])
    with contextlib.suppress(KeyboardInterrupt):
        routes._advance("actor")
    with pytest.raises(interruption):
        work.wait(0)


def test_parts_before_one_that_cannot_start_are_given_up() -> None:
    def starting() -> Iterator[Work[Any]]:
        yield part
        raise ValueError("it cannot be pickled")

    part = Sending()
    with pytest.raises(ValueError, match="cannot be pickled"):
        AsyncRouteWork("send_to()").begin(starting())
    assert part.given_up == 1


def test_an_answer_that_cannot_be_sent_may_be_sent_again() -> None:
    def put(item: Any, **options: Any) -> Work[None]:
        if item["batch"] == ["bad"]:
            raise ValueError("it cannot be pickled")
        keys.append(options["key"])
        return Sending()

    keys: list[Any] = []
    router = {"obs": ["0_0_train_obs", "1_0_train_obs"]}
    worker: Any = SimpleNamespace(_group_name="env", _rank=0, _world_size=1, batch_router=router)
    exchange: Any = SimpleNamespace(find_group=lambda group: size)
    size, channel = Work[int](), SimpleNamespace(put=put)
    size._settle(2)
    routes, route = Routes(worker, exchange), Route("actor", channel, "obs", None, "train", None, None, True, 0, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be pickled"):
        routes.send(route, ["good", "bad"], None).wait(0)
    assert router["obs"] == ["0_0_train_obs", "1_0_train_obs"]
    del keys[:]
    routes.send(route, ["good", "better"], None)
    assert [key[-1] for key in keys] == [0, 1]
    assert router["obs"] == []


def test_shards_that_cannot_be_merged_are_none_to_answer() -> None:
    def get(**options: Any) -> Work[Any]:
        part: Work[Any] = Work()
        part._settle({"batch": shards.pop(0), "batch_index": f"0_{len(shards)}_train_obs"})
        return part

    router: dict[str, list[str]] = {"obs": []}
    worker: Any = SimpleNamespace(_group_name="env", _rank=0, _world_size=1, batch_router=router)
    size, shards = Work[int](), [["a"], 1.0]
    size._settle(2)
    routes = Routes(worker, SimpleNamespace(find_group=lambda group: size))  # type: ignore[arg-type]
    channel: Any = SimpleNamespace(get=get)
    route = Route("actor", channel, "obs", None, "train", 4, None, True, 0, None)
    with pytest.raises(ConfigError, match="different kinds"):
        routes.receive(route, None, None).wait(0)
    assert router == {"obs": []}
