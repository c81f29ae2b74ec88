"""Publishers and subscribers that are dropped without being closed: nothing is left, and one warning."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
import warnings
import weakref
from typing import Any

import pytest
import torch

from rlinf_async.weights import Publisher, Subscriber
from tests._support import leaks
from tests._support.socket_links import pair as over_a_socket
from tests._support.weight_parts import LocalLink

in_use: list[weakref.ref[Any]] = []


async def use(make: Any, apply: str) -> dict[str, torch.Tensor]:
    held = {"a": torch.zeros(5)}
    to_receiver, to_sender = make()
    publisher, subscriber = Publisher({"a": torch.ones(5)}, apply=apply), Subscriber(to_sender, held, apply=apply)
    in_use.extend((weakref.ref(publisher), weakref.ref(subscriber)))
    publisher.add(0, to_receiver)
    handle = await publisher.publish()
    while subscriber.version < 1:
        await subscriber.receive(20)
    await handle
    return held


def told_by(drop: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        drop()
        gc.collect()
        until = time.monotonic() + 10
        while any(each() is not None for each in in_use) and time.monotonic() < until:
            time.sleep(0.01)  # a thread that has packed is about to return
            gc.collect()
    in_use.clear()
    return [str(each.message) for each in told if each.category is ResourceWarning]


@pytest.mark.parametrize("apply", ["copy", "map"])
@pytest.mark.parametrize("make", [LocalLink.pair, over_a_socket], ids=["local", "socket"])
def test_a_pair_leaves_nothing_and_one_warning_and_what_was_applied_stays(make: Any, apply: str) -> None:
    told_by(lambda: asyncio.run(use(LocalLink.pair, "copy")))  # what the process keeps from the first one on
    before = leaks.take()
    held: list[dict[str, torch.Tensor]] = []
    assert told_by(lambda: held.append(asyncio.run(use(make, apply)))) == [
        "unclosed publisher of 'policy': close() it, or its scheme"
    ]
    assert leaks.settle(before) == []
    assert held[0]["a"].tolist() == [1.0] * 5


def test_what_is_dropped_in_a_forked_process_is_its_parents() -> None:
    held = {"a": torch.zeros(5)}
    to_receiver, to_sender = LocalLink.pair()
    ends: list[Any] = [Publisher({"a": torch.ones(5)}, apply="map"), Subscriber(to_sender, held, apply="map")]
    ends[0].add(0, to_receiver)

    async def deliver(value: float) -> None:
        handle = await ends[0].publish({"a": torch.full((5,), value)})
        while ends[1].version < handle.version:
            await ends[1].receive(20)
        await handle

    asyncio.run(deliver(1.0))
    del to_receiver, to_sender
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        is_right = told_by(ends.clear) == [] and held["a"].tolist() == [1.0] * 5
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asyncio.run(deliver(2.0))
    assert held["a"].tolist() == [2.0] * 5

    async def close() -> None:
        for end in ends:
            await end.close()

    asyncio.run(close())
