"""The file of a durable experience and its thread: reported errors, and persistent counts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlinf_async import ConfigError
from rlinf_async._experience.state.experience_changes import Change, Drop, Earlier
from rlinf_launcher.daemon.sample_store import SampleStore, dropped_of


class Store:
    """A store, and its reports about changes."""

    def __init__(self, path: str) -> None:
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.store = SampleStore(path, "experience 'e'", asyncio.get_running_loop(), self.said.put_nowait)

    async def open(self) -> dict[str, int]:
        counts, _ = await asyncio.wait_for(self.store.open(), 20)
        return counts

    async def write(self, change: Change) -> Exception | None:
        self.store.write(change)
        ((_, error),) = await asyncio.wait_for(self.said.get(), 20)
        return error  # type: ignore[no-any-return]

    async def close(self) -> None:
        self.store.close()
        await asyncio.to_thread(self.store._thread.join, 20)


async def test_what_goes_wrong_in_the_thread_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot use durable=.*embedded null"):
        await Store(f"{tmp_path}/\0").open()
    store = Store(f"{tmp_path}/x.db")
    await store.open()
    error = await store.write(Drop([1], "a reason that no file takes: \ud800"))
    assert "could not write" in str(error)
    assert await store.write(Drop([1], "reason")) is None
    await store.close()


async def test_adopted_counts_persist_to_the_next_run(tmp_path: Path) -> None:
    store = Store(f"{tmp_path}/x.db")
    await store.open()
    await store.write(Earlier(3, 4, {"stale": 1}))
    await store.close()
    store = Store(f"{tmp_path}/x.db")
    counts = await store.open()
    assert (counts["version"], counts["taken"], dropped_of(counts)) == (3, 4, {"stale": 1})
    await store.close()
