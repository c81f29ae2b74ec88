"""A cluster on a stopped loop: waits end with an error, closing ends its nodes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlinf_async import Channel, ClosedError, Cluster, LoopNotRunning, wait_all
from rlinf_async._waits import unobserved_errors
from tests._support.workers import Plain

LIMIT = 0.5
"""Seconds for which a loop may stand still in these tests."""


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLINF_LOOP_TURN_S", str(LIMIT))


class Stopped:
    """A cluster that was opened by ``run_until_complete``, on a loop that stands still since."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.cluster, self.group, self.channel = self.loop.run_until_complete(self._open())

    async def _open(self) -> tuple[Cluster, Any, Channel]:
        cluster = await Cluster(log_to_driver=False)
        group = await Plain.create_group().launch(cluster, name="plain")
        self.pids = [*(await group.pid()), (await cluster.status())["pid"]]
        return cluster, group, await Channel.create("items", cluster=cluster)

    def has_ended(self) -> bool:
        return not any(psutil.pid_exists(pid) for pid in self.pids)

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.run_until_complete(self.cluster.aclose())
            self.loop.close()


@pytest.fixture(scope="module")
def stopped() -> Iterator[Stopped]:
    """For tests that leave it as it is."""
    stopped = Stopped()
    yield stopped
    stopped.close()


@pytest.fixture
def own() -> Iterator[Stopped]:
    stopped = Stopped()
    yield stopped
    stopped.close()


pytestmark = pytest.mark.shared_cluster


def seconds_until_told(attempt: Callable[[], Any]) -> float:
    since = time.monotonic()
    with pytest.raises(LoopNotRunning) as told:
        attempt()
    seconds = time.monotonic() - since
    assert "EventLoop running=False" in str(told.value)  # names the loop
    assert 'loop_scope="session"' in str(told.value)  # shows what to do
    return seconds


def test_waits_in_threads_and_in_other_loops_are_told_that_the_loop_stands_still(own: Stopped) -> None:
    group, channel = own.group, own.channel

    async def every() -> None:
        waits: list[Any] = [group.hello(), group.hello()[0], channel.get(), own.cluster.status(), group.close()]
        waits += [group.hello().async_wait(10), asyncio.create_task(anext(aiter(group.count(3)))), channel.close()]
        waits += [Channel.create("another", cluster=own.cluster).get(), wait_all(group.hello(), group.hello())]
        told = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(error) for error in told] == [LoopNotRunning] * len(waits), told

    assert LIMIT < seconds_until_told(group.hello().wait) < LIMIT + 1
    assert LIMIT < seconds_until_told(lambda: group.hello().wait(60)) < LIMIT + 1
    assert LIMIT < seconds_until_told(lambda: channel.put(1, timeout=60)) < LIMIT + 1
    since = time.monotonic()
    asyncio.run(every())
    assert LIMIT < time.monotonic() - since < LIMIT + 1


def test_what_was_asked_meanwhile_is_answered_once_the_loop_goes_on(stopped: Stopped) -> None:
    call = stopped.group.hello()
    with pytest.raises(LoopNotRunning):
        call.wait()
    assert stopped.loop.run_until_complete(call.async_wait(10)) == [0]


def test_a_loop_that_is_only_busy_is_not_called_dead(stopped: Stopped) -> None:
    found: list[Any] = []
    begun = threading.Event()

    def wait() -> None:
        call = stopped.group.hello()
        begun.set()
        found.append(call.wait(10))

    async def be_busy() -> None:
        thread.start()
        begun.wait()
        time.sleep(4 * LIMIT)

    thread = threading.Thread(target=wait)
    stopped.loop.run_until_complete(be_busy())
    stopped.loop.run_until_complete(asyncio.sleep(0.1))
    thread.join()
    assert found == [[0]]


def test_a_loop_that_turns_now_and_then_is_not_called_dead(stopped: Stopped) -> None:
    call = stopped.group.sleep(4 * LIMIT)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call.wait(10)))
    thread.start()
    while thread.is_alive():
        stopped.loop.run_until_complete(asyncio.sleep(0))
        thread.join(LIMIT / 4)
    assert found == [[4 * LIMIT]]


def test_a_wait_that_goes_on_while_the_loop_is_left_is_told(stopped: Stopped) -> None:
    call = stopped.group.sleep(60)
    found: list[Any] = []

    def wait() -> None:
        try:
            call.wait()
        except LoopNotRunning as error:
            found.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    stopped.loop.run_until_complete(asyncio.sleep(LIMIT * 1.5))
    thread.join(5)
    assert found == [LoopNotRunning]


@pytest.mark.parametrize("how", ["close", *(pytest.param(how, marks=pytest.mark.slow) for how in ("aclose", "work"))])
def test_closing_from_elsewhere_ends_the_processes_although_the_loop_stands_still(own: Stopped, how: str) -> None:
    async def close_in_another_loop() -> None:
        await (own.cluster.aclose() if how == "aclose" else own.cluster.close())

    since = time.monotonic()
    if how == "close":
        own.cluster.close()
    else:
        asyncio.run(close_in_another_loop())
    assert time.monotonic() - since < LIMIT + 9
    assert own.has_ended()
    own.cluster.close()  # again
    with pytest.raises(ClosedError):
        own.group.hello().wait(5)


def test_a_loop_that_was_closed_is_told_at_once_and_closing_ends_the_processes(own: Stopped) -> None:
    call = own.group.sleep(60)
    own.loop.close()
    for attempt in (call.wait, lambda: asyncio.run(call.async_wait()), own.group.hello, own.channel.close):
        since = time.monotonic()
        with pytest.raises(LoopNotRunning, match="is closed"):
            attempt()
        assert time.monotonic() - since < 0.1
    own.cluster.close()
    assert own.has_ended()
    assert unobserved_errors.lines() == []  # what fails because of the close is nobody's to await


PYTEST = """
import pytest, pytest_asyncio
from rlinf_async import Cluster, Worker

class Own(Worker):
    def hello(self):
        return self._rank

@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def group():
    async with Cluster(log_to_driver=False) as cluster:
        async with Own.create_group().launch(cluster) as group:
            yield group

@pytest.mark.asyncio
async def test_in_a_loop_of_its_own(group):
    assert await group.hello() == [0]

@pytest.mark.asyncio(loop_scope="session")
async def test_in_the_loop_of_the_session(group):
    assert await group.hello() == [0]
"""


@pytest.mark.slow
def test_a_session_fixture_with_tests_in_loops_of_their_own_fails_with_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(PYTEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_own.py"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "LoopNotRunning" in done.stdout
    assert 'loop_scope="session"' in done.stdout
