"""Workers replaced while weights are packed for them."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from typing import Any

import pytest
import torch

from rlinf_async import MultiProcessWeightSyncScheme
from rlinf_async.errors import ClosedError
from rlinf_async.weights import MPTransport
from tests._support.weight_parts import Store


def weights(value: float) -> dict[str, torch.Tensor]:
    """So large that a thread is asked."""
    return {"a": torch.full((300_000,), float(value))}


async def test_who_is_gone_when_all_is_packed_and_not_there_again_has_failed_and_later_sends_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was packed is published between the two: the old link is closed, and the new one not yet open."""
    packing, goes_on = threading.Event(), threading.Event()
    pack, close = Store.pack, MPTransport.close

    def pack_late(*args: Any, **options: Any) -> Any:
        packing.set()
        goes_on.wait(5)
        return pack(*args, **options)

    pipes = [multiprocessing.Pipe() for _ in range(3)]
    sending, receiving = MultiProcessWeightSyncScheme(), [MultiProcessWeightSyncScheme() for _ in range(3)]
    sending.init_on_sender("policy", pipes=[ours for ours, _ in pipes[:2]], source_model=weights(1))
    held = [weights(0) for _ in pipes]
    for scheme, (_, theirs), model in zip(receiving, pipes, held, strict=True):
        scheme.init_on_worker("policy", pipe=theirs, model=model)
    await asyncio.gather(sending.connect(timeout=5), *(scheme.connect(timeout=5) for scheme in receiving[:2]))
    sender: Any = sending.get_sender()
    publisher = sender._sending.publisher

    def close_late(transport: MPTransport) -> Any:
        async def closed() -> None:
            goes_on.set()
            while publisher._is_packing:
                await asyncio.sleep(0)
            close(transport)

        return closed()

    receiving[0].get_receiver().serve()
    with monkeypatch.context() as patch:
        patch.setattr(Store, "pack", pack_late)
        patch.setattr(MPTransport, "close", close_late)
        send = asyncio.ensure_future(sender.send(weights(2), timeout=10))
        assert await asyncio.to_thread(packing.wait, 5)
        await sender.replace(1, pipes[2][0])
        with pytest.raises(ClosedError, match="receiver 1 of 'policy' was removed"):
            await send
    assert set(held[0]["a"].tolist()) == {2.0}
    receiving[2].get_receiver().serve()
    assert (await sender.send(weights(3), timeout=10)).version == 3
    assert set(held[0]["a"].tolist()) == set(held[2]["a"].tolist()) == {3.0}
    for scheme in (sending, *receiving):
        await scheme.close()
    for pipe in pipes:
        for end in pipe:
            end.close()
