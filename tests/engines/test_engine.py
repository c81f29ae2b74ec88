"""``Engine``: pauses, stalls and ends, which all kinds of engine have in common."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from rlinf_async.engines import engine as module
from rlinf_async.engines.engine import Engine, EngineSettings, Trainer
from rlinf_async.engines.engine_worker import EngineWorker
from rlinf_async.engines.generation import Chunk, Completion, Request


class IdleEngine(Engine):
    version = 3
    tokenizer = None

    def __init__(self, stop: Callable[[], Any], stall_timeout: float | None = None) -> None:
        super().__init__(EngineSettings("", {}, stall_timeout=stall_timeout), "llm:0")
        self._stop = stop
        self.calls: list[str] = []

    def _title(self) -> str:
        return f"the model of {self._name}"

    async def _run(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def _follow(self, trainer: Trainer) -> None: ...

    async def _stop_sampling(self) -> None:
        self.calls.append("stop")
        await self._stop()

    async def _start_sampling(self) -> None:
        self.calls.append("start")

    async def generate(
        self, request: Request, prompt: Sequence[int], prefix: Sequence[int] = ()
    ) -> AsyncIterator[Chunk]:
        with self._progress.of_one():
            await asyncio.get_running_loop().create_future()
            yield Chunk(0, [], [], [])

    async def checksums(self) -> dict[str, str]:
        return {}

    async def stats(self) -> dict[str, float]:
        return {}

    async def close(self) -> None: ...


async def at_once() -> None: ...


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def test_the_last_of_two_pauses_ends_the_pause() -> None:
    engine = IdleEngine(at_once)
    await engine.pause()
    await engine.pause()
    await engine.resume()
    assert not engine._resumed.is_set()
    await engine.resume()
    assert engine._resumed.is_set()
    assert engine.calls == ["stop", "stop", "start"]


async def test_a_resume_takes_effect_after_the_pause_before_it() -> None:
    is_idle = asyncio.Event()
    engine = IdleEngine(is_idle.wait)
    pause = asyncio.ensure_future(engine.pause())
    await asyncio.sleep(0)
    resume = asyncio.ensure_future(engine.resume())
    await asyncio.sleep(0)
    is_idle.set()
    await asyncio.gather(pause, resume)
    assert engine.calls == ["stop", "start"]
    assert engine._resumed.is_set()
    assert not engine._progress.is_paused


async def test_a_resume_without_a_pause_does_not_end_the_pause_of_an_update() -> None:
    engine = IdleEngine(at_once)
    await engine._hold()
    await engine.resume()
    assert not engine._resumed.is_set()
    await engine._release()
    assert engine.calls == ["stop", "start"]


@pytest.mark.parametrize("is_updated", [False, True])
async def test_a_cancelled_pause_is_undone_also_in_an_engine_that_hangs(
    is_updated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UNDO_S", 0.01)
    engine = IdleEngine(for_ever)
    start = engine._start_sampling
    monkeypatch.setattr(engine, "_start_sampling", lambda: asyncio.gather(start(), for_ever()))
    engine._pauses = int(is_updated)
    pause = asyncio.ensure_future(engine.pause())
    await asyncio.sleep(0)
    pause.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pause
    assert engine._resumed.is_set() != is_updated
    assert engine.calls == (["stop"] if is_updated else ["stop", "start"])


@pytest.mark.parametrize("is_updated", [False, True])
async def test_a_silent_engine_ends_with_a_stall_also_amid_an_update(is_updated: bool) -> None:
    engine = IdleEngine(at_once, stall_timeout=0.05)
    if is_updated:
        await engine._hold()
    request = asyncio.ensure_future(anext(engine.generate(Request([1]), [1])))
    with pytest.raises(RuntimeError, match=r"the model of llm:0 has given no token for 0\.05 s .* to 1 open request"):
        await engine.serve()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


class SlowEngine(IdleEngine):
    is_closed = False

    async def generate(
        self, request: Request, prompt: Sequence[int], prefix: Sequence[int] = ()
    ) -> AsyncIterator[Chunk]:
        self.prefix = prefix
        try:
            for position in range(2):
                yield Chunk(position, [position], [-1.0], [3], prompt_tokens=[5])
            await asyncio.get_running_loop().create_future()
        finally:
            self.is_closed = True


async def test_a_stream_goes_on_behind_the_tokens_that_replaced_others() -> None:
    worker = object.__new__(EngineWorker)
    worker._engine = engine = SlowEngine(at_once)
    worker._settings = EngineSettings("", {}, on_update="abort")
    resume = [Chunk(0, [1, 2], [-1.0] * 2, [3] * 2), Chunk(0, [4], [-1.0], [3])]
    stream: Any = worker.stream(Request([5], chunk_tokens=1), resume=resume)
    await anext(stream)
    assert engine.prefix == [4]
    await stream.aclose()


async def test_a_stream_shows_that_its_rank_is_alive_while_the_engine_is_silent() -> None:
    worker = object.__new__(EngineWorker)
    worker._engine = engine = SlowEngine(at_once)
    worker._settings = EngineSettings("", {}, stall_timeout=0.01)
    stream: Any = worker.stream(Request([5]))
    completion = Completion()
    while len(completion.tokens) < 2:
        completion.add(await anext(stream))
    for _ in range(2):
        assert await anext(stream) == Chunk(2, [], [], [])
    assert not engine.is_closed
    await stream.aclose()
    assert engine.is_closed
