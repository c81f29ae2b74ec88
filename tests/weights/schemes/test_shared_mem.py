"""The shared-memory scheme's send buffer, written outside the loop."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import threading
from typing import Any

import pytest
import torch

from rlinf_async import SharedMemTransport, SharedMemWeightSyncScheme
from rlinf_async.weights.model.writing import Update

LARGE = 300_000
"""Elements for which a thread is asked."""


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((LARGE,), float(value)), "b": torch.full((7,), float(value))}


def values(held: dict[str, torch.Tensor]) -> list[list[float]]:
    return [sorted(set(tensor.tolist())) for tensor in held.values()]


class Held:
    """Writes into buffers wait until the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        write = Update.write

        def hold(update: Update, *place: Any) -> None:
            self.begun.set()
            assert self.goes_on.wait(20), "the loop, which would have let it go on, was held up"
            write(update, *place)

        monkeypatch.setattr(Update, "write", hold)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


async def test_a_large_buffer_is_written_beside_the_loop_and_send_async_ends_when_it_is_whole(held: Held) -> None:
    ours, theirs = multiprocessing.Pipe()
    buffer, sent = weights(0), weights(1)
    with ours, theirs:
        scheme = SharedMemWeightSyncScheme(strategy="state_dict")
        scheme.init_on_sender("policy", pipes=[ours])
        receiving = SharedMemWeightSyncScheme(strategy="state_dict")
        model = weights(0)
        receiving.init_on_worker("policy", pipe=theirs, model=model)
        serving = receiving.get_receiver().serve()
        scheme.transport._buffers["policy"] = buffer
        sending = asyncio.ensure_future(scheme.get_sender().send_async(sent))
        assert await asyncio.to_thread(held.begun.wait, 20)
        assert not sending.done()
        assert values(buffer) == [[0], [0]]
        held.goes_on.set()
        assert await sending == 1
        assert values(buffer) == [[1], [1]]
        for tensor in sent.values():
            tensor.fill_(9)
        await scheme.get_sender().wait_async()
        assert values(buffer) == values(model) == [[1], [1]]
        await scheme.close()
        await receiving.close()
        await asyncio.wait([serving])


async def test_who_is_cancelled_while_a_buffer_is_written_leaves_it_whole(held: Held) -> None:
    transport = SharedMemTransport()
    await transport.send_weights("policy", weights(0))
    sending = asyncio.ensure_future(transport.send_weights("policy", weights(1)))
    assert await asyncio.to_thread(held.begun.wait, 20)
    sending.cancel()
    held.goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await transport.close()
    assert values(transport.buffer("policy")) == [[1], [1]]


async def test_what_does_not_fit_is_refused_by_the_call_itself_and_the_buffer_stays() -> None:
    transport = SharedMemTransport()
    await transport.send_weights("policy", weights(1))
    for wrong in ({"a": torch.ones(LARGE), "b": torch.ones(8)}, {"c": torch.ones(LARGE)}):
        with pytest.raises(KeyError, match="Error updating destination"):
            transport.send_weights("policy", wrong)
    with pytest.raises(KeyError, match="not registered"):
        SharedMemTransport(auto_register=False).send_weights("policy", weights(1))
    await transport.close()
    assert values(transport.buffer("policy")) == [[1], [1]]


async def test_two_that_make_one_buffer_are_written_one_after_the_other() -> None:
    transport = SharedMemTransport()
    first, second = (transport.send_weights("policy", weights(value)) for value in (1, 2))
    await first
    buffer = transport.buffer("policy")
    await second
    await transport.close()
    assert transport.buffer("policy") is buffer
    assert values(buffer) == [[2], [2]]


def test_a_transport_that_has_copied_can_be_pickled_and_goes_on_elsewhere() -> None:
    transport = SharedMemTransport()
    transport.send_weights("policy", weights(1))
    other = pickle.loads(pickle.dumps(transport))
    other.send_weights("policy", weights(2))
    assert values(other.buffer("policy")) == [[2], [2]]
    assert values(transport.buffer("policy")) == [[1], [1]]
    for each in (transport, other):
        each.close()
