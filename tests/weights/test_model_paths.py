"""Models named by a path: resolved at each version, an error where missing."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async import MultiProcessWeightSyncScheme
from rlinf_async.errors import DeadlineExceeded
from tests.weights.ends import Tied


@contextlib.asynccontextmanager
async def in_context(path: str, context: Any, **options: Any) -> AsyncIterator[Any]:
    """A sender, and the receiver of the model under that path of the context."""
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        sending, receiving = (MultiProcessWeightSyncScheme(**options) for _ in range(2))
        sending.init_on_sender(path, pipes=[ours], source_model=Tied(1.0))
        context.pipe = theirs
        receiving.init_on_worker(path, context)
        del context  # which only its owner keeps
        try:
            yield sending.get_sender(), receiving.get_receiver()
        finally:
            await sending.close()
            await receiving.close()


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_a_path_leads_to_what_is_there_when_a_version_comes(apply: str) -> None:
    first, second, third = Tied(), Tied(), Tied()
    worker = SimpleNamespace(env=SimpleNamespace(transform=[first]))
    async with in_context("env.transform[0]", worker, apply=apply) as (sender, receiver):
        serving = receiver.serve()
        await sender.send(Tied(1.0))
        worker.env.transform[0] = second
        await sender.send(Tied(2.0))
        assert (first.values(), second.values()) == ({1.0}, {2.0})
        receiver._register_model(third)
        await sender.send(Tied(3.0))
        assert (first.values(), second.values(), third.values()) == ({1.0}, {2.0}, {3.0})
        assert not serving.done()


@pytest.mark.parametrize(
    ("path", "worker", "complaint"),
    [
        ("policy", SimpleNamespace(other=1), "Attribute policy from"),
        ("policy", SimpleNamespace(policy=None), "No model registered"),
        ("models[3]", SimpleNamespace(models=[]), "list index out of range"),
    ],
)
async def test_a_sender_hears_that_there_is_no_model_and_the_one_that_comes_gets_the_next_version(
    path: str, worker: Any, complaint: str
) -> None:
    async with in_context(path, worker, ack_timeout=60) as (sender, receiver), asyncio.timeout(30):
        receiver.serve()
        for _ in range(2):
            with pytest.raises(Exception, match=complaint) as raised:
                await sender.send()
            assert not isinstance(raised.value, DeadlineExceeded)
        worker.policy, worker.models = Tied(), [Tied()] * 4
        with contextlib.suppress(ValueError, AttributeError, IndexError):  # of what it has said last
            await sender.send()
        await receiver.wait_version(3, 20)
        await sender.send(Tied(4.0))
        assert (worker.policy if path == "policy" else worker.models[3]).values() == {4.0}


async def test_a_sender_hears_that_the_context_is_gone_while_its_worker_receives() -> None:
    context = type("Context", (), {})()
    async with in_context("policy", context, ack_timeout=60) as (sender, receiver), asyncio.timeout(30):
        del context
        work = sender.send()
        with pytest.raises(ValueError, match="Context has been garbage collected"):
            await receiver.receive(20.0)
        with pytest.raises(ValueError, match="Context has been garbage collected"):
            await work
