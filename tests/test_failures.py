"""Calls whose workers raise, die or freeze, or whose caller gives up."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rlinf_async import (
    ClosedError,
    Cluster,
    LaunchError,
    NodePlacementStrategy,
    RemoteError,
    WorkerDied,
    each,
    handle as handles,
)
from tests._support.mortal_workers import Mortal
from tests._support.until import until
from tests._support.workers import OddError, Plain, SeedWorker, Stillborn

pytestmark = pytest.mark.shared_cluster

FOUR = NodePlacementStrategy([0] * 4)


@pytest.fixture
def four(cluster: Cluster) -> Iterator[Any]:
    group = Plain.create_group().launch(cluster, placement=FOUR, name="four").wait_ready()
    yield group
    group.close()


def test_a_remote_exception_arrives_as_itself_with_who_and_where(four: Any) -> None:
    with pytest.raises(ValueError, match="as told") as caught:
        four.fail([2]).wait()
    notes = "\n".join(caught.value.__notes__)
    pid = four.pid().wait()[2]
    assert f"from rank 2 of group 'four' on localhost (pid {pid})" in notes
    assert "raise ValueError(text)" in notes
    assert "rlinf_async" not in notes


def test_several_failures_are_one_error_and_the_others_are_notes(four: Any) -> None:
    with pytest.raises(ValueError, match="as told") as caught:
        four.block_and_fail(0.3).wait()
    assert "other failures of the same call" in "\n".join(caught.value.__notes__)


def test_an_exception_whose_constructor_takes_something_else_arrives_as_itself(four: Any) -> None:
    with pytest.raises(OddError, match="this and that") as caught:
        four[0].fail_oddly().wait()
    assert "raise OddError" in caught.value.__notes__[-1]


@pytest.mark.parametrize(("method", "text"), [("leave", "SystemExit: 3"), ("interrupt", "KeyboardInterrupt")])
def test_what_would_end_a_process_is_an_error_and_the_worker_lives(four: Any, method: str, text: str) -> None:
    with pytest.raises(RemoteError, match=text):
        getattr(four, method)().wait()
    assert four.hello().wait() == [0, 1, 2, 3]


async def test_outcomes_give_every_ranks_result_or_error(four: Any) -> None:
    outcomes = await four.fail([1]).outcomes()
    assert [outcome.ok for outcome in outcomes] == [True, False, True, True]
    assert isinstance(outcomes[1].error, ValueError)
    assert outcomes[3].value == 3


def test_a_result_that_exits_on_arrival_does_not_end_the_drivers_loop(four: Any) -> None:
    assert [type(outcome.error) for outcome in four.give_exit().outcomes().wait(10)] == [SystemExit] * 4
    with pytest.raises(SystemExit):
        four.give_exit()[1].wait(10)


def test_outcomes_that_are_asked_for_when_a_rank_has_just_failed_are_those_of_all_ranks(
    four: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handles, "ASK_FIRST_S", 5.0)
    call = four.fail_after(each([0.5, 0.0, 0.5, 0.5]))
    until(lambda: call._tally.failed, 5)
    assert [str(outcome.error) for outcome in call.outcomes().wait(10)] == ["as told"] * 4


def test_a_failure_that_nobody_waits_for_cancels_the_other_ranks_too(four: Any) -> None:
    call = four.fail_after(each([60, 0.5, 60, 60]))
    four.hello().wait(5)  # all of them have begun
    until(call.done, 5)
    assert four.was_cancelled().wait(10) == [True, False, True, True]
    with pytest.raises(ValueError, match="as told"):
        call.wait(5)


async def test_a_cancelled_call_is_cancelled_on_every_rank_within_half_a_second(four: Any) -> None:
    call = four.sleep(60)
    await four.hello()  # all of them have begun
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await call
    since = time.monotonic()
    assert await four.was_cancelled() == [True] * 4
    assert time.monotonic() - since < 0.5


async def test_the_caller_is_freed_although_a_rank_is_stopped(four: Any) -> None:
    pids = await four.pid()
    handle = four.sleep(60)
    assert await four.noted() == [["sleeping"]] * 4
    os.kill(pids[1], signal.SIGSTOP)
    try:
        since = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await handle
        assert time.monotonic() - since < 0.5
        others = four.execute_on(0, 2, 3)
        assert await others.was_cancelled() == [True] * 3
    finally:
        os.kill(pids[1], signal.SIGCONT)
    assert await four[1].was_cancelled() == [True]


async def test_a_call_that_waits_in_the_queue_never_starts_once_cancelled(four: Any) -> None:
    busy = four.block(0.3)
    queued = four.note("never")
    queued.cancel()
    with pytest.raises(ClosedError, match=r"handle.cancel\(\)"):
        await queued
    await busy
    assert await four.noted() == [[]] * 4


@pytest.mark.parametrize("view", ["part", "outcomes", "as_completed", "durations", "task"])
async def test_whoever_is_the_last_to_wait_for_any_part_of_a_call_cancels_it(four: Any, view: str) -> None:
    handle = four.sleep(60)
    assert await four.noted() == [["sleeping"]] * 4

    async def wait() -> None:
        if view == "part":
            await handle[1]
        elif view == "outcomes":
            await handle.outcomes()
        elif view == "as_completed":
            async for _ in handle.as_completed():
                pass
        elif view == "durations":
            await handle.consume_durations()
        else:
            task = asyncio.create_task(handle)
            task.cancel()
            await task

    with pytest.raises((TimeoutError, asyncio.CancelledError)):
        await asyncio.wait_for(wait(), 0.1)
    async with asyncio.timeout(0.5):
        while await four.was_cancelled() != [True] * 4:
            pass


async def test_a_part_of_a_cancelled_call_is_over_too(four: Any) -> None:
    handle = four.sleep(60)
    part = handle[1]
    handle.cancel()
    with pytest.raises(ClosedError):
        await part
    with pytest.raises(ClosedError):
        await handle[2]


async def _wait(handle: Any) -> Any:
    return await handle


async def test_a_thousand_random_cancels_leave_nothing_open(cluster: Cluster, four: Any) -> None:
    async def give_up(after: float) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(after):
                await four.sleep(30)

    for _ in range(5):
        await asyncio.gather(*(give_up(0.0005 * (i % 40)) for i in range(200)))
    assert await four.hello() == [0, 1, 2, 3]
    async with asyncio.timeout(1):  # a daemon hears a few milliseconds later that calls have been answered
        while (await cluster.status())["busy"]:
            pass
    assert repr(four) == "<WorkerGroup four [4 workers on 1 node | 0 calls open]>"


@pytest.mark.parametrize(
    ("how", "verdict"),
    [("SIGKILL", "killed by SIGKILL"), ("SIGSEGV", "killed by SIGSEGV"), ("exit", "exited with code 3")],
)
def test_a_death_is_told_within_a_second_with_everything_that_is_known(four: Any, how: str, verdict: str) -> None:
    pid = four.pid().wait()[2]
    since = time.monotonic()
    with pytest.raises(WorkerDied) as caught:
        four.die([2], how).wait()
    assert time.monotonic() - since < 1
    died = caught.value
    assert (died.group, died.rank, died.node, died.pid) == ("four", 2, "localhost", pid)
    assert verdict in str(died)
    assert any(method.startswith("die") for method in died.methods)
    assert "last words of rank 2" in str(died)
    assert os.path.exists(died.log_path)
    assert died.log_path in str(died)
    with pytest.raises(WorkerDied, match="rank 2 of group 'four'"):
        four.hello().wait()
    assert four.execute_on(0, 1, 3).hello().wait() == [0, 1, 3]
    assert "1 dead: 2" in repr(four)


async def test_closing_after_a_death_raises_nothing(cluster: Cluster) -> None:
    group = Plain.create_group().launch(cluster, placement=FOUR, name="to-die")
    async with group:
        calls = [group.sleep(60) for _ in range(3)]
        os.kill((await group.pid())[0], signal.SIGKILL)
        for call in calls:
            with pytest.raises(WorkerDied, match="sleep"):
                await call
    with pytest.raises(ClosedError, match="group 'to-die' is closed"):
        group.hello()


async def test_a_rank_that_raises_frees_the_caller_while_others_sit_in_a_collective(cluster: Cluster) -> None:
    async with SeedWorker.create_group().launch(cluster, placement=FOUR, name="collective") as group:
        pids = [entry.worker.pid for entry in group.worker_info_list]
        await group.initialize()
        since = time.monotonic()
        with pytest.raises(ValueError, match="not this time"):
            await group.reduce_unless(3)
        assert time.monotonic() - since < 2
    assert time.monotonic() - since < 5
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_a_constructors_error_comes_at_the_first_await(cluster: Cluster) -> None:
    group = Stillborn.create_group([1]).launch(cluster, placement=FOUR, name="stillborn")
    call = group.hello()
    with pytest.raises(ValueError, match="not born today") as caught:
        await group
    assert "from rank 1 of group 'stillborn'" in "\n".join(caught.value.__notes__)
    with pytest.raises(ValueError, match="not born today"):
        await call
    await group.close()


def test_what_a_dead_worker_left_behind_is_gone_with_it(cluster: Cluster) -> None:
    group = Plain.create_group().launch(cluster, name="leaver").wait_ready()
    left = group.leave_behind().wait()[0]
    assert all(psutil.pid_exists(pid) for pid in left)
    group.close()
    assert [pid for pid in left if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"] == []


def test_children_that_ended_before_their_worker_leave_no_zombies(cluster: Cluster) -> None:
    group = Plain.create_group().launch(cluster, name="forker").wait_ready()
    pid = group.run("os.fork() or os._exit(0)").wait()[0]
    assert group.run(f"os.waitid(os.P_PID, {pid}, os.WEXITED | os.WNOWAIT).si_pid").wait() == [pid]
    group.close()
    assert not psutil.pid_exists(pid)


def test_closing_twice_does_nothing(cluster: Cluster) -> None:
    group = Plain.create_group().launch(cluster, name="twice")
    group.close()
    group.close()


def test_a_group_closed_while_it_is_launched_leaves_nothing(cluster: Cluster) -> None:
    before = cluster.status()["endpoints"]
    for _ in range(5):
        group = Plain.create_group().launch(cluster, placement=FOUR, name="hasty")
        call = group.hello()
        group.close()
        with pytest.raises(ClosedError):
            call.wait()
    assert cluster.status()["endpoints"] == before


async def test_a_group_whose_constructor_fails_is_gone_after_async_with(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="not born today"):
        async with Stillborn.create_group([0]).launch(cluster, placement=FOUR, name="gone"):
            pass
    assert "gone" not in (await cluster.status())["groups"]


def test_calls_made_during_a_launch_come_after_the_constructor_and_keep_their_arguments(cluster: Cluster) -> None:
    ballast = torch.zeros(1 << 24)
    group = Plain.create_group(ballast).launch(cluster, name="early")
    argument = torch.zeros(1 << 18)
    calls = [group.echo(argument) for _ in range(20)]
    argument.fill_(1)
    for call in calls:
        assert float(call.wait()[0][0][0].sum()) == 0
    group.close()


def test_a_template_that_cannot_start_fails_the_launch_with_its_last_words(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.99 is not there')")
    group = Plain.create_group().launch(cluster, name="broken", env={"PYTHONPATH": str(tmp_path)})
    with pytest.raises(LaunchError, match="the worker template exited with code 1") as caught:
        group.wait_ready()
    assert "    | ImportError: libcudart.so.99 is not there" in str(caught.value)
    log = re.search(r"full log +(/.+)", str(caught.value))
    assert log is not None
    assert "ImportError: libcudart.so.99 is not there" in Path(log[1]).read_text()
    group.close()


async def test_answers_do_not_need_the_daemon(cluster: Cluster, four: Any) -> None:
    await four.hello()
    daemon = (await cluster.status())["pid"]
    handle = four.sleep(0.2)
    assert await four.hello() == [0, 1, 2, 3]  # so the earlier call has arrived as well
    os.kill(daemon, signal.SIGSTOP)
    try:
        async with asyncio.timeout(5):
            assert await handle == [0.2] * 4
    finally:
        os.kill(daemon, signal.SIGCONT)


def test_the_last_answer_of_a_worker_that_dies_at_once_is_not_lost(cluster: Cluster) -> None:
    for _ in range(5):
        group = Plain.create_group().launch(cluster, placement=FOUR, name="last").wait_ready()
        last = group.run("asyncio.get_event_loop().call_soon(os._exit, 3) and 'word'")
        assert last.wait() == ["word"] * 4
        with pytest.raises(WorkerDied, match="exited with code 3"):
            group.sleep(5).wait()
        group.close()


@pytest.mark.parametrize(
    "breaks",
    [
        "asyncio.get_event_loop().close()",
        "(t := __import__('threading')).Thread(target=t.Event().wait).start() or asyncio.get_event_loop().close()",
        "os.closerange(3, 100)",
    ],
)
def test_a_worker_that_breaks_its_own_loop_says_how(cluster: Cluster, breaks: str) -> None:
    group = Plain.create_group().launch(cluster, name="breaks", env={"RLINF_CLOSE_GRACE_S": "0.5"}).wait_ready()
    call = group.run(breaks)
    with pytest.raises(WorkerDied) as caught:
        group.sleep(5).wait(10)
    call.cancel()
    died = caught.value
    assert died.exit_code == 70
    told = "\n".join(died.last_words)
    assert "Traceback (most recent call last)" in told
    assert "RuntimeError: Event loop is closed" in told or "Bad file descriptor" in told
    assert "this worker's event loop broke" in told
    group.close()


async def test_a_death_says_of_each_lost_call_whether_it_had_started(cluster: Cluster, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    async with Mortal.create_group().launch(cluster, placement=NodePlacementStrategy([0])) as group:
        await group.write(ran, 0)
        running = group.write(ran, 1, tmp_path / "now")
        queued = [group.write(ran, number) for number in range(2, 100)]
        (tmp_path / "now").touch()
        told = [
            getattr(outcome.error, "execution", None)
            for (outcome,) in [await call.outcomes() for call in (running, *queued)]
        ]
        with pytest.raises(WorkerDied, match="this call   had started"):
            await running
        with pytest.raises(WorkerDied, match="this call   had not started"):
            await queued[-1]
        with pytest.raises(WorkerDied) as late:
            await group.write(ran, 100)
    assert told == ["started"] + ["not started"] * 98
    assert late.value.execution == "not started"
    assert ran.read_text() == "0 1 "


async def test_a_death_between_a_result_and_its_answer_says_that_the_call_had_finished(cluster: Cluster) -> None:
    async with Mortal.create_group().launch(cluster, placement=NodePlacementStrategy([0])) as group:
        with pytest.raises(WorkerDied, match="this call   had finished: only its answer was lost") as died:
            await group.die_before_the_answer()
    assert died.value.execution == "finished"
