"""Tasks and threads of this process are told with what they wait for, and only those of the user's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import uvloop

from rlinf_async._inspection.own_activities import own_activities
from rlinf_async._inspection.served_calls import ServedCall
from rlinf_async._inspection.state.run_report import Activity, ActivityState, Target, TargetKind
from rlinf_async._inspection.wait_ages import WaitAges
from rlinf_async._waits import slow_waits
from rlinf_async._wire.grpc import grpc  # not before: gRPC reads while it is imported how much it prints
from rlinf_async.work import Work
from tests._support.forked_children import exit_code, forked

Activities = dict[str, Activity]
Make = Callable[[], Coroutine[Any, Any, Any]]


class Answer(Work[None]):
    """Something that another process has to do."""

    _kind = "call"

    def _describe(self) -> str:
        return "an answer"

    def _needs(self) -> slow_waits.Needs:
        return [Target(TargetKind.CALL, 7, 8)], True


async def look(**options: Any) -> Activities:
    """As the thread that reads a socket does: from another one."""
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(own_activities, **options)
        found = await asyncio.wrap_future(looking)
    return {activity.name: activity for activity in found}


@contextlib.asynccontextmanager
async def under_way(*makes: Make) -> AsyncIterator[None]:
    """Tasks that have come to where they wait, each by the name of its function."""
    tasks = [asyncio.create_task(make(), name=getattr(make, "__name__", "")) for make in makes]
    for _ in range(5):
        await asyncio.sleep(0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def never() -> None:
    await asyncio.Event().wait()


async def test_a_task_in_the_table_of_waits_waits_for_what_its_work_needs() -> None:
    async def direct() -> None:
        await Answer()

    async def limited() -> None:
        async with asyncio.timeout(50):
            await Answer()

    async def gathered() -> None:
        await asyncio.gather(Answer())

    async with under_way(direct, limited, gathered):
        found = await look()
    for name, left in (("task direct", False), ("task limited", True)):
        wait = found[name].wait
        assert wait is not None
        assert (wait.kind, wait.what, wait.targets) == ("call", "an answer", [Target(TargetKind.CALL, 7, 8)])
        assert (wait.left is not None) is left
        assert found[name].state is ActivityState.WAITING
    (inner,) = found["task gathered"].awaits
    assert found[inner].wait is not None
    assert str(found["task direct"].line).endswith("direct()")


async def awaiting() -> None:
    await asyncio.create_task(never(), name="inner")


async def gathering() -> None:
    await asyncio.gather(asyncio.create_task(never(), name="inner"))


async def shielding() -> None:
    await asyncio.shield(asyncio.create_task(never(), name="inner"))


async def waiting() -> None:
    await asyncio.wait([asyncio.create_task(never(), name="inner")])


async def grouping() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(never(), name="inner")


async def handing_over() -> None:
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(awaiting(), asyncio.get_running_loop()))


@pytest.mark.parametrize("make", [awaiting, gathering, shielding, waiting, grouping, handing_over])
async def test_a_task_awaits_others_however_it_does_so(make: Make) -> None:
    async with under_way(make):
        found = await look()
        while "task inner" not in found:  # made by the loop
            found = await look()
    names = found[f"task {make.__name__}"].awaits
    while names and names != ["task inner"]:
        (name,) = names
        names = found[name].awaits
    assert names == ["task inner"]
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def limited_wait_for() -> None:
    await asyncio.wait_for(never(), 50)


async def limited_wait() -> None:
    await asyncio.wait([asyncio.ensure_future(never())], timeout=50)


async def limited_parent() -> None:
    async with asyncio.timeout(50):
        await gathering()


@pytest.mark.parametrize("make", [limited_wait_for, limited_wait, limited_parent])
async def test_what_has_a_deadline_goes_on_by_itself_and_so_does_what_it_waits_for(make: Make) -> None:
    async with under_way(make):
        found = await look()
        for activity in found.values():
            if activity.line is not None and activity.line.endswith("never()"):
                assert activity.wait is not None
                assert activity.wait.left is not None
        parent = found[f"task {make.__name__}"]
        assert parent.state is ActivityState.SLEEPING or (parent.wait is not None and parent.wait.left is not None)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def test_of_several_of_which_one_is_enough_none_has_to_end() -> None:
    async def first() -> None:
        either = [asyncio.create_task(never(), name=name) for name in ("right", "left")]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in either:
                task.cancel()

    async with under_way(first):
        found = await look()
    wait = found["task first"].wait
    assert wait is not None
    assert wait.targets == [Target(TargetKind.LOCAL, name="task left"), Target(TargetKind.LOCAL, name="task right")]
    assert not wait.every
    assert not found["task first"].awaits


async def test_locks_events_and_queues_are_of_this_process_and_other_futures_may_be_the_outsides() -> None:
    lock = asyncio.Lock()

    async def locks() -> None:
        async with lock:
            await never()

    async def takes() -> None:
        await asyncio.Queue[None]().get()

    async def future() -> None:
        await asyncio.get_running_loop().create_future()

    async def reads() -> None:
        await asyncio.StreamReader().read()

    async with lock, under_way(locks, takes, never, future, reads):
        found = await look()
    kinds = {name: activity.wait.kind for name, activity in found.items() if activity.wait is not None}
    assert kinds == {"task locks": "lock", "task takes": "queue", "task never": "event"}
    assert {found[name].state for name in ("task future", "task reads")} == {ActivityState.RUNNING}


async def test_a_sleep_tells_how_long_it_takes_and_a_task_that_runs_has_its_line() -> None:
    async def sleeps() -> None:
        await asyncio.sleep(30)

    async with under_way(sleeps):
        found = {activity.name: activity for activity in own_activities()}
    wait = found["task sleeps"].wait
    assert wait is not None
    assert wait.left is not None
    assert 20 < wait.left <= 30
    assert found["task sleeps"].state is ActivityState.SLEEPING
    own = asyncio.current_task()
    assert own is not None
    running = found[f"task {own.get_name()}"]
    assert running.state is ActivityState.RUNNING
    assert __file__ in str(running.line)


async def test_tasks_of_the_framework_are_not_told_nor_is_the_thread_that_runs_their_loop() -> None:
    async with under_way(Answer):
        found = await look()
    assert [name for name in found if name.startswith("thread")] == []
    own = asyncio.current_task()
    assert own is not None
    assert list(found) == [f"task {own.get_name()}"]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run, lambda main: uvloop_until_complete(main)])
def test_a_loop_of_any_kind_is_told_by_its_tasks(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    found: list[Activities] = []

    async def main() -> None:
        waiting = asyncio.ensure_future(Answer())
        await asyncio.sleep(0)
        found.append(await look())
        waiting.cancel()

    run(main())
    (activity,) = found[0].values()
    assert activity.name.startswith("task ")
    assert [frame.function for frame in activity.stack if frame.users] == ["main", "look"]


def uvloop_until_complete(main: Coroutine[Any, Any, None]) -> None:
    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


# -- calls ----------------------------------------------------------------------------------------------------------


async def test_a_task_serves_the_call_of_what_has_made_it() -> None:
    async def served() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(never(), name="in a group")
            await asyncio.gather(asyncio.create_task(never(), name="gathered"))

    async with under_way(served, never):
        (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "served")
        found = await look(calls=lambda: [ServedCall(3, 4, "step", task)])
    told = {name: (each.method, each.source, each.number) for name, each in found.items()}
    assert told["task served"] == told["task gathered"] == told["task in a group"] == ("step", 3, 4)
    assert told["task never"] == ("", 0, 0)


async def test_a_thread_serves_the_call_of_the_task_that_waits_for_it() -> None:
    letting_go = threading.Event()

    def work() -> None:
        letting_go.wait()

    async def served() -> None:
        await asyncio.to_thread(work)

    async with under_way(served):
        (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "served")
        found = await look(calls=lambda: [ServedCall(3, 4, "step", task)])
        while not str(found["thread asyncio_0"].line).endswith("work()"):
            found = await look(calls=lambda: [ServedCall(3, 4, "step", task)])
        letting_go.set()
    assert found["task served"].awaits == ["thread asyncio_0"]
    assert (found["thread asyncio_0"].source, found["thread asyncio_0"].number) == (3, 4)


async def test_a_call_that_cannot_be_found_runs() -> None:
    task = asyncio.create_task(never())
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    found = await look(calls=lambda: [ServedCall(3, 4, "step", task)])
    assert found["call 4"] == Activity("call 4", ActivityState.RUNNING, method="step", source=3, number=4)


async def test_what_needs_a_blocked_loop_waits_for_what_blocks_it() -> None:
    """A coroutine that the loop has not begun, and a task and a thread whose answers it does not read."""
    loop, own = asyncio.get_running_loop(), asyncio.current_task()
    assert own is not None
    answers = [Answer(), Answer()]

    async def wait() -> None:
        await answers[0]

    def feed() -> None:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()

    def look() -> None:
        while True:
            found.update({each.name: each for each in own_activities(blocked=loop)})
            waiting = (found.get(name) for name in ("task wait", "thread feeder", "thread asker"))
            if all(each is not None and each.awaits for each in waiting):
                answers[1]._settle(None)
                return

    found: Activities = {}
    async with under_way(wait):
        feeder, asker, looker = (
            threading.Thread(target=target, name=name)
            for target, name in ((feed, "feeder"), (lambda: answers[1].wait(30), "asker"), (look, "looker"))
        )
        for thread in (feeder, asker, looker):
            thread.start()
        looker.join(20)  # the loop stands still
        blocking = f"task {own.get_name()}"
        assert found[blocking].blocks
        for name in ("task wait", "thread feeder", "thread asker"):
            assert (found[name].state, found[name].awaits) == (ActivityState.WAITING, [blocking])
            assert not found[name].blocks
    await asyncio.to_thread(feeder.join)
    asker.join()


async def test_what_keeps_a_loop_from_running_is_as_old_as_the_turn_of_the_loop() -> None:
    loop, found = asyncio.get_running_loop(), []
    begun = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        looked = pool.submit(lambda: (time.sleep(0.3), found.extend(own_activities(blocked=loop))))
        time.sleep(0.5)
        looked.result()
    ages = [each.age for each in found if each.blocks]
    assert len(ages) == 1
    assert ages[0] is not None
    assert 0.2 < ages[0] <= time.monotonic() - begun + 0.1


async def test_a_task_that_could_go_on_waits_for_what_blocks_its_loop() -> None:
    lock, heard = threading.Lock(), Future[list[Activity]]()

    async def ready() -> None:
        await asyncio.sleep(0)

    def watch() -> None:
        while not heard.done():
            found = own_activities()
            if any(each.wait is not None and each.wait.what == "a lock" for each in found):
                heard.set_result(found)
                lock.release()

    lock.acquire()
    task = asyncio.create_task(ready(), name="ready")
    watcher = threading.Thread(target=watch)
    watcher.start()
    with lock:  # the loop stands still
        found = {each.name: each for each in heard.result()}
    watcher.join()
    await task
    own = asyncio.current_task()
    assert own is not None
    assert (found["task ready"].state, found["task ready"].awaits) == (
        ActivityState.WAITING,
        [f"task {own.get_name()}"],
    )


# -- ages -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("rlinf_async._inspection.wait_ages.clock.monotonic", lambda: now[0])
    return now


def test_an_age_is_told_once_it_is_long_and_when_it_is_known_to_be_short(clock: list[float]) -> None:
    class Await:
        pass

    ages, token = WaitAges(), Await()

    def at(seconds: float, token: object) -> float | None:
        clock[0] = 100.0 + seconds
        ages.begin()
        return ages.age("task", token)

    assert at(0, token) is None
    assert at(0.5, token) is None
    assert at(3, token) == 3
    token = Await()
    assert at(3.5, token) == 0.5
    assert at(4, token) is None
    ages.begin()
    assert at(5, token) is None


async def test_a_forked_process_tells_of_itself_alone() -> None:
    def tell() -> None:
        assert {activity.name for activity in own_activities()} == {"thread MainThread"}

    async with under_way(never):
        with forked(tell) as child:
            assert await asyncio.to_thread(exit_code, child) == 0


def test_a_thread_of_grpcs_is_told_that_waits_for_the_answer_to_a_call() -> None:
    """Its callback may be what a user's event is set by."""
    done = threading.Event()
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        grpc.insecure_channel(f"127.0.0.1:{silent.getsockname()[1]}") as channel,
    ):
        call = channel.unary_unary("/reward/score").future(b"4")
        call.add_done_callback(lambda _: done.set())
        running = [each for each in own_activities() if "/grpc/" in str(each.line)]
        assert [each.state for each in running] == [ActivityState.RUNNING]
        call.cancel()
        assert done.wait(10)
        # gRPC closes the socket where it next waits for something: here for a call that nobody answers.
        silent.close()
        assert channel.unary_unary("/reward/score").future(b"4").exception(10) is not None
