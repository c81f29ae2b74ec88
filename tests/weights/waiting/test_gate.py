"""Read-write gate of the weights."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import weakref
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rlinf_async._core import clock
from rlinf_async.errors import DeadlineExceeded
from rlinf_async.weights.waiting.conditions import Reading, ReadingGate
from rlinf_async.work import Work


async def test_readers_share_and_get_the_version() -> None:
    gate = ReadingGate(lambda: 7)
    async with gate.reading() as one, gate.reading() as other:
        assert (one, other) == (7, 7)


async def test_a_writer_waits_for_readers_and_keeps_later_ones_out() -> None:
    gate, order = ReadingGate(lambda: 0), []
    inside, leave, waits = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def read(name: str) -> None:
        async with gate.reading():
            order.append(name)
            inside.set()
            await leave.wait()

    async def write() -> None:
        waits.set()
        async with gate.writing():
            order.append("writer")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read("early"))
        await inside.wait()
        tasks.create_task(write())
        await waits.wait()
        tasks.create_task(read("late"))
        await asyncio.sleep(0)
        assert order == ["early"]
        leave.set()
    assert order == ["early", "writer", "late"]


@pytest.mark.parametrize("in_thread", [True, False])
async def test_the_wait_for_the_first_version_and_for_the_turn_share_one_deadline(in_thread: bool) -> None:
    gate, first = ReadingGate(lambda: 1), Work[None]()
    reading = Reading(gate, 0.4, first)
    async with gate.writing():
        asyncio.get_running_loop().call_later(0.3, first._settle)
        began = clock.monotonic()
        with pytest.raises(DeadlineExceeded):
            await (asyncio.to_thread(reading.__enter__) if in_thread else reading.__aenter__())
        assert clock.monotonic() - began < 0.65


async def test_a_reader_within_a_reader_passes_a_waiting_writer() -> None:
    gate = ReadingGate(lambda: 0)
    waits = asyncio.Event()

    async def write() -> None:
        waits.set()
        async with gate.writing():
            pass

    async with asyncio.TaskGroup() as tasks, gate.reading():
        tasks.create_task(write())
        await waits.wait()
        async with asyncio.timeout(5), gate.reading():
            pass


async def test_a_task_started_inside_is_no_reader_once_its_parent_has_left() -> None:
    gate = ReadingGate(lambda: 0)
    left, out = asyncio.Event(), []

    async def child() -> None:
        await left.wait()
        async with gate.reading():
            out.append("read")

    async with asyncio.TaskGroup() as tasks:
        async with gate.reading():
            tasks.create_task(child())
            await asyncio.sleep(0)
        async with gate.writing():
            left.set()
            for _ in range(5):
                await asyncio.sleep(0)
            assert out == []
    assert out == ["read"]


async def test_a_writers_deadline_says_who_is_in_the_way_and_lets_readers_in_again() -> None:
    gate = ReadingGate(lambda: 0)
    async with gate.reading():
        with pytest.raises(DeadlineExceeded, match="has not left its reading"):
            async with gate.writing(0.01):
                pass
        async with asyncio.timeout(5):
            await asyncio.create_task(_read(gate))
    async with gate.writing(5):
        pass


async def _read(gate: ReadingGate) -> None:
    async with gate.reading():
        pass


async def test_a_reader_in_a_thread_holds_a_writer_in_a_loop() -> None:
    gate, events = ReadingGate(lambda: 3), []
    inside, leave = threading.Event(), threading.Event()

    def read() -> None:
        with gate.reading(timeout=5) as version:
            events.append(version)
            inside.set()
            leave.wait(5)
            events.append("left")

    thread = threading.Thread(target=read)
    thread.start()
    try:
        await asyncio.to_thread(inside.wait, 5)
        with pytest.raises(DeadlineExceeded):
            async with gate.writing(0.01):
                pass
        leave.set()
        async with gate.writing(5):
            assert events == [3, "left"]
    finally:
        leave.set()
        thread.join()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 6)), max_size=8))
def test_never_both_at_once_and_nobody_is_forgotten_whoever_is_cancelled(plans: list[tuple[bool, int, int]]) -> None:
    """Each plan is a reader or a writer, how many steps it stays, and after how many it is cancelled (6: never)."""

    async def run() -> None:
        gate, readers, writers, done = ReadingGate(lambda: 0), 0, 0, 0

        async def one(writes: bool, stay: int) -> None:
            nonlocal readers, writers, done
            block = gate.writing() if writes else gate.reading()
            async with block:
                if writes:
                    writers += 1
                else:
                    readers += 1
                assert writers <= 1
                assert not (readers and writers)
                try:
                    for _ in range(stay):
                        await asyncio.sleep(0)
                finally:
                    if writes:
                        writers -= 1
                    else:
                        readers -= 1
            done += 1

        tasks = [asyncio.create_task(one(writes, stay)) for writes, stay, _ in plans]
        for step in range(6):
            await asyncio.sleep(0)
            for task, (_, _, cancelled) in zip(tasks, plans, strict=True):
                if cancelled == step:
                    task.cancel()
        async with asyncio.timeout(5):
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        assert done >= sum(cancelled == 6 for *_, cancelled in plans)
        assert repr(gate) == "<ReadingGate [0 reading, 0 waiting]>"

    asyncio.run(run())


async def test_a_reader_in_a_thread_is_no_inner_one_once_the_outer_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has come while the outer one's block was open, and takes its turn afterwards."""
    gate, order = ReadingGate(lambda: 0), []
    comes, goes_on, reads = threading.Event(), threading.Event(), threading.Event()
    ask = gate._ask

    def slow(**kwargs: Any) -> Any:
        if threading.current_thread() is child:
            comes.set()
            goes_on.wait(20)
        return ask(**kwargs)

    def read() -> None:
        with gate.reading(timeout=20):
            order.append("read")
            reads.set()

    with gate.reading():
        child = threading.Thread(target=contextvars.copy_context().run, args=(read,))
        monkeypatch.setattr(gate, "_ask", slow)
        child.start()
        assert await asyncio.to_thread(comes.wait, 20)
    async with gate.writing(20):
        goes_on.set()
        async with asyncio.timeout(20):
            while not (gate._waiting or reads.is_set()):
                await asyncio.sleep(0)
        order.append("written")
    await asyncio.to_thread(child.join, 20)
    assert order == ["written", "read"]


def test_a_task_that_began_in_a_block_keeps_no_memory_alive_after_it() -> None:
    class Memory: ...

    memory = Memory()
    is_there = weakref.ref(memory)
    with Reading(ReadingGate(lambda: 0), None, owner=memory):
        context = contextvars.copy_context()
    del memory
    assert is_there() is None
    assert len(context) > 0
