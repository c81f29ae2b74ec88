"""Sends of a sender that is closed meanwhile: an error with the model's name."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlinf_async import MultiProcessWeightSyncScheme, publish
from rlinf_async.errors import ClosedError
from rlinf_async.weights import Publisher, scope
from tests._support.weight_parts import LocalLink, Store, SyncAdapter
from tests.weights.ends import both


def test_a_sender_that_is_closed_while_it_packs_says_that_it_is_closed() -> None:
    async def main(name: str) -> None:
        packs, goes_on = threading.Event(), threading.Event()
        before: Any = getattr(Store, name)

        def held_up(*args: Any, **kwargs: Any) -> Any:
            packs.set()
            goes_on.wait(10)
            return before(*args, **kwargs)

        ours, theirs = multiprocessing.Pipe()
        scheme = MultiProcessWeightSyncScheme()
        scheme.init_on_sender("policy", pipes=[ours], source_model={"w": torch.ones(2_000_000)})
        with pytest.MonkeyPatch.context() as patch, ours, theirs:
            patch.setattr(Store, name, held_up)
            sending = asyncio.ensure_future(scheme.get_sender().send(timeout=10))
            assert await asyncio.to_thread(packs.wait, 10)
            threading.Timer(0.1, goes_on.set).start()
            await scheme.close()
            with pytest.raises(ClosedError, match="'policy' is closed"):
                await sending

    for name in ("pack", "__init__"):
        asyncio.run(main(name))


async def test_a_sender_that_is_closed_while_it_waits_for_its_workers_says_so() -> None:
    ours, theirs = multiprocessing.Pipe()
    scheme = MultiProcessWeightSyncScheme()
    with ours, theirs:
        scheme.init_on_sender("policy", pipes=[ours], source_model={"w": torch.ones(2)})
        sending = asyncio.ensure_future(scheme.get_sender().send(timeout=20))
        while not scheme.get_sender().version:
            await asyncio.sleep(0)
        await scheme.close()
        with pytest.raises(ClosedError, match="'policy' is closed"):
            await sending


@pytest.mark.parametrize("turns", range(4))
async def test_a_sender_whose_close_is_cancelled_closes_every_transport(turns: int) -> None:
    async with both("multiprocess", source={"w": torch.ones(2_000_000)}, model={"w": torch.zeros(2_000_000)}) as ends:
        await ends.deliver()
        (transport,) = ends.sender._transports.values()
        closing = asyncio.ensure_future(ends.schemes[0].close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        async with asyncio.timeout(20):
            await asyncio.wait([closing])
            while transport._link is not None:
                await asyncio.sleep(0)
        assert ends.sender._sending.made._store is None


async def test_a_rank_that_only_exports_holds_up_no_loop_when_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope, "require_exchange", lambda: None)
    exports, goes_on = threading.Event(), threading.Event()

    def export() -> Iterator[tuple[str, torch.Tensor]]:
        exports.set()
        assert goes_on.wait(5), "the loop that lets it go on stands still"
        return iter(())

    weights = publish(export, to="rollout")
    sending = asyncio.ensure_future(weights.send())
    assert await asyncio.to_thread(exports.wait, 5)
    asyncio.get_running_loop().call_later(0.05, goes_on.set)
    await weights.close()
    assert await sending == 1


async def test_nobody_is_added_to_a_publisher_that_is_being_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread, which has seen that it is open."""
    publisher = Publisher({"w": torch.ones(2)})
    monkeypatch.setattr(publisher, "_check_open", lambda: None)
    await publisher.close()
    to_receiver, _ = LocalLink.pair()
    with pytest.raises(ClosedError, match="'policy' is closed"):
        publisher.add("late", to_receiver)
    assert publisher.worker_ids == []


def test_the_loop_for_blocking_calls_is_not_given_back_under_a_call_that_begins() -> None:
    """By another thread, which looks after the call has found the loop and before it runs there."""

    async def seven() -> int:
        return 7

    bridge = SyncAdapter()
    bridge.run(seven(), "the first call")
    runner = bridge._blocking.runner
    assert runner is not None

    def run(*call: Any, **options: Any) -> Any:
        bridge.release()
        return runner.run(*call, **options)

    bridge._blocking.runner = SimpleNamespace(run=run, get_loop=runner.get_loop, close=runner.close)  # type: ignore[assignment]
    assert bridge.run(seven(), "the second call") == 7
    bridge.release()
    assert bridge._blocking.runner is None
