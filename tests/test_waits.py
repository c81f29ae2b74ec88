"""Whatever waits for long says so, with the user's line, from wherever it is waited for."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from rlinf_async import settings, waits
from rlinf_async.work import Work

FIRST_S = 0.05


class Words:
    """The words that have been said."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def texts(self) -> list[str]:
        return [text for record in self._caplog.records if "still waiting" in (text := record.getMessage())]


class Named(Work[None]):
    """Something that says what it is, and lets go of itself once a word about it has been said."""

    kind = "call"

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def _describe(self) -> str:
        return self.name

    def _whom(self) -> str:
        return "ranks 0-3 of 'rollout'"

    def _far_side(self) -> Work[str]:
        far = done("ranks 0-3 are in step (60 s)")
        far._follow(lambda: self._settle())
        return far


def done(text: str) -> Work[str]:
    work: Work[str] = Work()
    work._settle(text)
    return work


@pytest.fixture(autouse=True)
def first_word_is_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.WAIT_WARNING_S.variable, str(FIRST_S))


@pytest.fixture
def words(caplog: pytest.LogCaptureFixture) -> Words:
    return Words(caplog)


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


async def test_many_waits_at_one_line_are_one_word(words: Words) -> None:
    async def one(work: Work[None]) -> None:
        await work

    works = [Named("obs.get()") for _ in range(5)]
    tasks = [asyncio.create_task(one(work)) for work in works]
    await works[0].async_wait()
    for work in works:
        work._settle()
    await asyncio.gather(*tasks)
    assert [text for text in words.texts if "and so do 4 others there" in text]
    assert len(words.texts) <= 2  # and of this test's own line


def test_a_thread_that_waits_says_so_too(words: Words) -> None:
    line = line_here()
    Named("rollout.step()").wait()
    (text,) = words.texts
    assert f" for rollout.step(), at {line} in " in text


def test_the_second_and_third_word_follow(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.WAIT_WARNING_2_S.variable, "0.6")
    monkeypatch.setenv(settings.WAIT_WARNING_3_S.variable, "1.2")

    class Patient(Named):
        asked = 0

        def _far_side(self) -> Work[str]:
            self.asked += 1
            return super()._far_side() if self.asked == 3 else done("")

    async def wait() -> None:
        await Patient("an await")

    thread = threading.Thread(target=lambda: Patient("a thread").wait())
    thread.start()
    asyncio.run(wait())
    thread.join()
    assert sorted(text.split(" for ")[1].split(",")[0] for text in words.texts) == 3 * ["a thread"] + 3 * ["an await"]


def test_the_table_is_data(words: Words) -> None:
    async def wait() -> None:
        work = Named("rollout.step()")
        task = asyncio.create_task(work.async_wait(), name="trainer")
        await asyncio.sleep(0)
        (row,) = waits.snapshot()
        assert (row.kind, row.what, row.whom) == ("call", "rollout.step()", "ranks 0-3 of 'rollout'")
        assert row.owner == "task trainer"
        work._settle()
        await task
        assert waits.snapshot() == []

    asyncio.run(wait())


def test_a_thread_enters_the_table_after_a_moment_and_leaves_it_when_its_wait_ends() -> None:
    seen: list[waits.Wait] = []

    class Watched(Named):
        def _far_side(self) -> Work[str]:
            seen.extend(waits.snapshot())
            return super()._far_side()

    Watched("rollout.step()").wait()
    (row,) = seen
    assert row.owner == "thread MainThread"
    assert row.line is not None
    assert __file__ in row.line
    assert waits.snapshot() == []


def test_a_word_that_cannot_be_said_ends_no_wait(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Named):
        def _far_side(self) -> Work[str]:
            threading.Timer(0, self._settle).start()
            raise RuntimeError("no")

    async def wait() -> None:
        await Broken("rollout.step()")

    asyncio.run(wait())
    assert "no word could be said" in caplog.text


def test_a_forked_child_has_none_of_its_parents_waits() -> None:
    async def wait() -> None:
        work = Named("rollout.step()")
        task = asyncio.create_task(work.async_wait())
        await asyncio.sleep(0)
        pid = os.fork()
        if not pid:
            os._exit(len(waits.snapshot()))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert len(waits.snapshot()) == 1
        work._settle()
        await task

    asyncio.run(wait())


@pytest.fixture(autouse=True)
def nothing_waits_afterwards() -> Iterator[None]:
    yield
    assert waits.snapshot() == []
