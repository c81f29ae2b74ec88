"""Models of so many tensors that their description exceeds a pipe's buffer."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from typing import Any

import pytest
import torch

from rlinf_async import MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme
from rlinf_async.errors import DeadlineExceeded
from tests.weights.ends import both

pytestmark = pytest.mark.slow

SCHEMES = pytest.mark.parametrize("scheme", [MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme])


def model(value: float) -> dict[str, Any]:
    return {f"layers.{index}.a_rather_long_name_of_a_weight": torch.full((1,), value) for index in range(5000)}


@SCHEMES
async def test_a_worker_that_never_reads_is_named_at_the_deadline_and_the_loop_goes_on_until_then(scheme: Any) -> None:
    ours, theirs = multiprocessing.Pipe()
    sender = scheme(ack_timeout=1.0)
    sender.init_on_sender("policy", pipes=[ours], source_model=model(1.0))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    counting = asyncio.create_task(count())
    with pytest.raises(DeadlineExceeded, match="receiver 0"):
        await sender.connect(timeout=1.0)
    await sender.close()
    counting.cancel()
    await asyncio.wait([counting])
    assert turns > 5
    ours.close()
    theirs.close()


@SCHEMES
async def test_a_worker_that_reads_late_but_in_time_has_the_weights(scheme: Any) -> None:
    ours, theirs = multiprocessing.Pipe()
    sender, worker = scheme(), scheme()
    sender.init_on_sender("policy", pipes=[ours], source_model=model(1.0))
    late = model(0.0)
    connecting = sender.connect(timeout=60.0)
    assert await asyncio.to_thread(theirs.poll, 60)
    worker.init_on_worker("policy", pipe=theirs, model=late)
    await worker.connect(timeout=60.0)
    await connecting
    assert all(float(tensor) == 1.0 for tensor in late.values())
    await worker.close()
    await sender.close()
    ours.close()
    theirs.close()


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_the_first_version_of_50_000_tensors_takes_seconds(apply: str) -> None:
    """On a quiet machine both sides take two seconds; the bound leaves room for a busy one."""
    source = {f"layer{index // 10}.w{index % 10}": torch.ones(4) for index in range(50_000)}
    model = {name: torch.zeros(4) for name in source}
    async with both("multiprocess", model, source, apply=apply) as ends:
        begun = time.process_time()
        await ends.deliver()
        assert time.process_time() - begun < 5
        assert ends.sees == {1.0}
