"""Cancelled sends: the sender goes on, with a new version number."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.weights.ends import CALLED, SCHEMES, Tied, both

TURNS = (0, 2, 5, 9)
"""Of the loop, after which a send is cancelled: small weights are sent in fewer."""

every_scheme = pytest.mark.parametrize("kind", SCHEMES)
listening = pytest.mark.parametrize("kind", [kind for kind in SCHEMES if kind not in CALLED])
"""Those whose workers answer by themselves."""

either_way = pytest.mark.parametrize("how", ["send", "send_async"])


async def taken(ends: Any) -> None:
    """What a worker does."""
    while True:
        await ends.take(5.0)


async def cancelled_after(turns: int, ends: Any, how: str) -> None:
    sending = asyncio.ensure_future(getattr(ends.sender, how)(timeout=40))
    for _ in range(turns):
        await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])  # which is not to say that all has ended
    if ends.sender._pending is not None:  # it was sent before it could be cancelled
        await ends.sender.wait_async()


@pytest.mark.parametrize("turns", TURNS)
@either_way
@every_scheme
async def test_after_a_cancelled_send_the_next_ones_arrive(kind: str, how: str, turns: int) -> None:
    source = Tied(1.0)
    async with both(kind, source=source) as ends:
        taking = asyncio.create_task(taken(ends)) if kind not in CALLED else None
        await cancelled_after(turns, ends, how)
        before = ends.sender.version
        for value in (2.0, 3.0):
            source.fill(value)
            version = (await ends.sender.send(timeout=40)).version
            assert version == ends.sender.version > before
            before = version
            assert ends.sees == {value}
        assert ends.errors == []
        if taking is not None:
            taking.cancel()
            await asyncio.wait([taking])


@listening
async def test_a_number_that_a_worker_may_have_heard_is_never_given_away_again(kind: str) -> None:
    """A worker takes each number for what came with it first."""
    source = Tied(1.0)
    async with both(kind, source=source) as ends:
        sending = asyncio.ensure_future(ends.sender.send(timeout=40))
        while not ends.sender.version:
            await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
        source.fill(2.0)
        taking = asyncio.create_task(taken(ends))
        assert (await ends.sender.send(timeout=40)).version == 2
        assert ends.sees == {2.0}
        taking.cancel()
        await asyncio.wait([taking])


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("kind", ["multiprocess", "shared memory", "distributed"])
async def test_who_was_cancelled_while_connecting_connects_again(kind: str, turns: int) -> None:
    async with both(kind) as ends:
        first = asyncio.ensure_future(ends.schemes[0].connect(timeout=40))
        for _ in range(turns):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        await asyncio.gather(*(scheme.connect(timeout=40) for scheme in ends.schemes))
        assert ends.sees == {1.0}
