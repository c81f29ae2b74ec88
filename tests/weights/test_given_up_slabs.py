"""Cancellation while shared memory is made or closed: no leaks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf_async.weights import Publisher
from tests._support.weight_parts import LocalLink, Store


def weights(value: float) -> dict[str, torch.Tensor]:
    """So large that a thread is asked."""
    return {"a": torch.full((300_000,), float(value))}


def slabs() -> int:
    """Open slots."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(entry).startswith("/memfd:rlinf")
        except OSError:
            pass  # the folder itself
    return found


class Held:
    """A method of the store that waits, having done what it does, until it is let go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._is_there, self._goes_on = threading.Event(), threading.Event()
        plain = getattr(Store, name)

        def wait(*args: Any, **options: Any) -> Any:
            result = plain(*args, **options)
            self._is_there.set()
            self._goes_on.wait(5)
            return result

        monkeypatch.setattr(Store, name, wait)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._is_there.wait, 5)

    def go_on(self) -> None:
        self._goes_on.set()


async def cancelled_within(held: Held, doing: Coroutine[Any, Any, Any]) -> None:
    task = asyncio.ensure_future(doing)
    await held.reached()
    task.cancel()
    await asyncio.sleep(0)
    held.go_on()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize("begin", [Publisher.publish, Publisher.connect])
async def test_memory_that_is_made_for_a_send_that_is_cancelled_is_given_back(
    monkeypatch: pytest.MonkeyPatch, begin: Callable[[Publisher], Coroutine[Any, Any, Any]]
) -> None:
    before = slabs()
    async with Publisher(weights(1)) as publisher:
        for _ in range(2):
            with monkeypatch.context() as patch:
                await cancelled_within(Held(patch, "__init__"), begin(publisher))
            assert slabs() == before
        await (await publisher.publish())
        assert slabs() == before + 2
    assert slabs() == before


async def test_memory_that_is_made_while_the_publisher_is_closed_and_cancelled_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = slabs()
    publisher, held = Publisher(weights(1)), Held(monkeypatch, "__init__")
    publishing = asyncio.create_task(publisher.publish())
    await held.reached()
    closing = asyncio.create_task(publisher.close())
    await asyncio.sleep(0)
    publishing.cancel()
    closing.cancel()
    await asyncio.sleep(0)
    held.go_on()
    await asyncio.wait([publishing, closing])
    assert slabs() == before


@pytest.mark.parametrize("ends", [1, 2])
async def test_a_cancelled_close_closes_links_and_memory(monkeypatch: pytest.MonkeyPatch, ends: int) -> None:
    before = slabs()
    to_receiver, to_sender = LocalLink.pair()
    publisher = Publisher(weights(1))
    await (await publisher.publish())
    publisher.add(0, to_receiver)
    held = Held(monkeypatch, "pack")
    publishing = asyncio.create_task(publisher.publish(weights(2)))
    await cancelled_within(held, publisher.close())
    await asyncio.wait([publishing])
    assert publishing.exception() is not None
    for _ in range(1, ends):
        await publisher.close()
    assert slabs() == before
    assert to_sender.error is not None
    to_sender.close()


async def test_a_close_that_is_cancelled_while_it_gives_memory_back_says_so_when_that_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = slabs()
    publisher = Publisher(weights(1))
    await (await publisher.publish())
    await cancelled_within(Held(monkeypatch, "close"), publisher.close())
    assert slabs() == before
