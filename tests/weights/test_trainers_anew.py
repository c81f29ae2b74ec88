"""Restarted trainers with a store: handshake with waiting workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rlinf_async import DistributedWeightSyncScheme
from rlinf_async._core import frames
from rlinf_async.errors import RemoteError
from rlinf_async.weights.transports import distributed
from tests.weights.ends import Both, Tied, both


@contextlib.asynccontextmanager
async def trained_by(ends: Both, value: float) -> AsyncIterator[Any]:
    """The sender of a trainer that has the same store as the last one, and knows nothing of it."""
    scheme, store = DistributedWeightSyncScheme(ack_timeout=20.0), ends.sender._transports[0]._store
    scheme.init_on_sender("policy", store=store, num_workers=1, source_model=Tied(value))
    try:
        yield scheme.get_sender()
    finally:
        await scheme.close()


@pytest.mark.parametrize("versions", [1, 3])
async def test_what_a_worker_does_not_apply_another_trainer_does_not_take_for_applied(versions: int) -> None:
    async with both("distributed") as ends, asyncio.timeout(60):
        for _ in range(versions):
            await ends.deliver()
        await ends.schemes[0].close()
        async with trained_by(ends, 5.0) as sender:
            taking = asyncio.create_task(ends.take())
            with pytest.raises(RemoteError, match=f"goes on from there with send.version={versions + 1}"):
                await sender.connect()
            assert not await taking
            assert (ends.sees, ends.receiver.version) == ({1.0}, versions)

            taking = asyncio.create_task(ends.take())
            await sender.send(version=versions + 1)
            assert await taking
            assert (ends.sees, ends.receiver.version) == ({5.0}, versions + 1)


async def test_the_first_weights_are_waited_for_also_after_a_transfer_that_has_failed() -> None:
    """Its sender has died right after it had said that something comes."""
    async with both("distributed") as ends, asyncio.timeout(60):
        store = ends.sender._transports[0]._store
        head = {"generation": "of one who is gone", "nbytes": 64, "version": 1, "model_id": "policy", "timeout": 0.01}
        store.set("NODE_1_in/1", frames.pack(head))
        store.set("NODE_1_count", "1")
        connecting = ends.receiver.connect(timeout=30)
        await asyncio.to_thread(store.wait, ["NODE_1_at/of one who is gone/0/1"])  # it has been taken
        await ends.sender.connect()
        await connecting
        assert (ends.sees, ends.receiver.version) == ({1.0}, 1)


async def test_what_a_worker_cannot_unpack_its_sender_hears() -> None:
    def fail(head: Any, packed: Any) -> Any:
        raise ImportError("No module named 'tensordict'")

    async with both("distributed") as ends, asyncio.timeout(60):
        await ends.deliver(Tied(1.0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(distributed, "_unpack", fail)
            with pytest.raises(RemoteError, match="No module named 'tensordict'"):
                await ends.deliver(Tied(2.0), timeout=10)
        assert isinstance(ends.errors[0], ImportError)
        await ends.deliver(Tied(3.0))
        assert ends.sees == {3.0}
