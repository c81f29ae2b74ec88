"""Warnings about long waits, with the user's line, from every kind of wait."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rlinf_async import settings
from rlinf_async._waits import slow_waits
from rlinf_async._waits.user_code import Waiter
from rlinf_async.work import Work

FIRST_S = 0.05


class Words(logging.Handler):
    """The words that have been said; each lets go of what it is about, once that has had its words."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "still waiting" in text:
            self.texts.append(text)
        for work in [work for work in _started if work.name in text]:
            work.words -= 1
            if not work.words:
                work._settle()


_started: list[Named] = []


class Named(Work[None]):
    """Something that says what it is, and is done after so many words."""

    _kind = "call"

    def __init__(self, name: str, words: int = 1) -> None:
        super().__init__()
        self.name = name
        self.words = words
        _started.append(self)

    def _describe(self) -> str:
        return self.name

    def _whom(self) -> str:
        return "ranks 0-3 of 'rollout'"

    def _peer_activity(self) -> Work[str]:
        far: Work[str] = Work()
        far._settle("ranks 0-3 are in step (60 s)")
        return far


@pytest.fixture(autouse=True)
def first_word_is_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.WAIT_WARNING_S.variable, str(FIRST_S))


@pytest.fixture
def words() -> Iterator[Words]:
    said, logger = Words(), logging.getLogger("rlinf_async._waits.slow_waits")
    logger.addHandler(said)
    yield said
    logger.removeHandler(said)
    _started.clear()


def line_here(below: int = 1) -> str:
    """``file:line`` of the line that many below the caller's."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno + below}"


async def test_an_await_says_after_a_while_what_it_waits_for_at_which_line_and_what_the_other_side_does(
    words: Words,
) -> None:
    line = line_here()
    await Named("rollout.step()")
    (text,) = words.texts
    assert text.startswith("still waiting after 0 s (since ")
    assert f" for rollout.step(), at {line} in " in text
    assert text.endswith(": ranks 0-3 are in step (60 s)")


async def in_a_generator(work: Work[None]) -> AsyncIterator[None]:
    await work
    yield


async def inside(work: Work[None]) -> None:
    async for _ in in_a_generator(work):
        pass


async def test_the_line_is_found_through_whatever_awaits(words: Words) -> None:
    lines = {}
    lines["a wait with a deadline"] = line_here()
    await Named("a wait with a deadline").async_wait(30)
    lines["gathered"] = line_here()
    await asyncio.gather(Named("gathered"), asyncio.sleep(0))
    async with asyncio.TaskGroup() as group:
        group.create_task(Named("of a task group"))
        lines["of a task group"] = line_here(-2)
    lines["shielded"] = line_here()
    await asyncio.shield(Named("shielded"))
    task = asyncio.create_task(inside(Named("by a generator")))
    lines["by a generator"] = f"{__file__}:{inspect.getsourcelines(in_a_generator)[1] + 1}"
    await asyncio.wait([task])
    told = {text.split(" for ")[1].split(",")[0]: text for text in words.texts}
    for name, line in lines.items():
        assert f", at {line} in " in told[name], name


def test_many_waits_at_one_line_are_one_word(words: Words) -> None:
    waiter = Waiter("task trainer", "train.py:12 in main()", False)
    slow_waits.warn([(Named("obs.get()"), 40.0 + late, waiter) for late in range(5)], 100.0)
    (text,) = words.texts
    assert "still waiting after 60 s" in text
    assert ", at train.py:12 in main(), and so do 4 others there: ranks 0-3 are in step (60 s)" in text


def test_a_thread_that_waits_says_so_too(words: Words) -> None:
    line = line_here()
    Named("rollout.step()").wait()
    (text,) = words.texts
    assert f" for rollout.step(), at {line} in " in text


def test_the_table_is_data(words: Words) -> None:
    async def wait() -> None:
        work = Named("rollout.step()")
        task = asyncio.create_task(work.async_wait(), name="trainer")
        await asyncio.sleep(0)
        (row,) = slow_waits.snapshot()
        assert (row.kind, row.what, row.whom) == ("call", "rollout.step()", "ranks 0-3 of 'rollout'")
        assert row.owner == "task trainer"
        work._settle()
        await task
        assert slow_waits.snapshot() == []

    asyncio.run(wait())


def test_a_thread_enters_the_table_after_a_moment_and_leaves_it_when_its_wait_ends(words: Words) -> None:
    seen: list[slow_waits.WaitRecord] = []

    class Watched(Named):
        def _peer_activity(self) -> Work[str]:
            seen.extend(slow_waits.snapshot())
            return super()._peer_activity()

    Watched("rollout.step()").wait()
    (row,) = seen
    assert row.owner == "thread MainThread"
    assert row.line is not None
    assert __file__ in row.line
    assert slow_waits.snapshot() == []


def test_a_thread_that_runs_none_of_the_users_code_is_named(words: Words) -> None:
    thread = threading.Thread(target=Named("rollout.step()").wait, name="of the framework")
    thread.start()
    thread.join()
    assert " for rollout.step(), at thread of the framework: " in words.texts[0]


async def test_a_word_about_a_wait_that_ended_before_the_other_side_answered_is_not_said(words: Words) -> None:
    asked: list[Work[str]] = []

    class Slow(Named):
        def _peer_activity(self) -> Work[str]:
            asked.append(Work())
            self._settle()
            return asked[0]

    await Slow("rollout.step()")
    asked[0]._settle("ranks 0-3 are idle")
    assert words.texts == []


async def test_what_a_task_awaits_may_be_anything(words: Words) -> None:
    class Odd:
        def __init__(self, work: Work[None]) -> None:
            self.work = work

        def __getattr__(self, name: str) -> Odd:
            return Odd(self.work)

        def __await__(self) -> Any:
            return self.work.__await__()

    await Odd(Named("oddly awaited"))
    assert f"at {line_here(-1)} in " in words.texts[0]


def test_a_word_that_cannot_be_said_ends_no_wait(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Named):
        def _peer_activity(self) -> Work[str]:
            threading.Timer(0, self._settle).start()
            raise RuntimeError("no")

    async def wait() -> None:
        await Broken("rollout.step()")

    asyncio.run(wait())
    assert "no word could be said" in caplog.text


class Listener:
    def _on_long_wait(self) -> None: ...


def test_a_listener_that_is_added_amid_a_warning_ends_no_wait() -> None:
    listeners = [Listener()]
    slow_waits.add_listener(listeners[0])

    def add_another(*_: Any) -> None:  # as another thread may at each line
        listeners.append(Listener())
        slow_waits.add_listener(listeners[-1])

    sys.setprofile(add_another)
    try:
        slow_waits.warn([(Named("obs.get()"), 40.0, Waiter("main", "t.py:1", False))], 100.0)
    finally:
        sys.setprofile(None)


def test_a_forked_child_has_none_of_its_parents_waits() -> None:
    async def wait() -> None:
        work = Named("rollout.step()")
        task = asyncio.create_task(work.async_wait())
        await asyncio.sleep(0)
        pid = os.fork()
        if not pid:
            os._exit(len(slow_waits.snapshot()))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert len(slow_waits.snapshot()) == 1
        work._settle()
        await task

    asyncio.run(wait())


@pytest.fixture(autouse=True)
def nothing_waits_afterwards() -> Iterator[None]:
    yield
    assert slow_waits.snapshot() == []
