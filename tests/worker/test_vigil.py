"""Whoever waits for long without a deadline is told so, once."""

from __future__ import annotations

import asyncio

import pytest

from rlinf_async.worker import vigil
from rlinf_async.worker.vigil import Vigil, vigil_of


async def test_each_is_told_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vigil, "SLOW", 0.02)
    loop = asyncio.get_running_loop()
    watch, told, all_told = Vigil(loop), [], asyncio.Event()

    def tell(name: str) -> None:
        told.append(name)
        if name == "last":
            all_told.set()

    watch.begin(lambda: tell("first"))
    soon_over = watch.begin(lambda: tell("soon over"))
    loop.call_later(0.01, watch.begin, lambda: tell("last"))
    watch.end(soon_over)
    watch.end(soon_over)
    async with asyncio.timeout(5):
        await all_told.wait()
    assert told == ["first", "last"]
    assert repr(watch) == "<Vigil [0 waiting]>"


async def test_it_is_set_again_for_whoever_comes_after_it_had_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vigil, "SLOW", 0.01)
    watch = vigil_of(asyncio.get_running_loop())
    assert vigil_of(asyncio.get_running_loop()) is watch
    for _ in range(2):
        told = asyncio.Event()
        watch.begin(told.set)
        async with asyncio.timeout(5):
            await told.wait()
