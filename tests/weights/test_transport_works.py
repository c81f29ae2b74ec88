"""Transport methods: a ``Work`` in a coroutine, blocking elsewhere."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlinf_async import (
    DistributedTransport,
    MPTransport,
    RPCTransport,
    SharedMemTransport,
    WorkerActorTransport,
    WorkerTransport,
)
from rlinf_async.errors import ClosedError
from rlinf_async.weights import NoTransport
from rlinf_async.weights.schemes.worker_scheme import WorkerLinkTransport
from rlinf_async.weights.transports import distributed
from rlinf_async.work import Work
from tests._support.weight_parts import StoreMail

WEIGHTS = {"w": torch.zeros(2)}


@contextmanager
def over_a_pipe() -> Iterator[Any]:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        theirs.send((None, "updated"))
        yield MPTransport(ours)


@contextmanager
def alone(make: Callable[[], Any]) -> Iterator[Any]:
    yield make()


TRANSPORTS: dict[str, Callable[[], Any]] = {
    "none": lambda: alone(NoTransport),
    "pipe": over_a_pipe,
    "shared memory": lambda: alone(SharedMemTransport),
    "worker": lambda: alone(WorkerTransport),
    "actor": lambda: alone(WorkerActorTransport),
    "rpc": lambda: alone(RPCTransport),
    "line": lambda: alone(lambda: WorkerLinkTransport("rollout", 0)),
    "distributed": lambda: alone(DistributedTransport),
}

CALLS: dict[str, tuple[Any, ...]] = {
    "send_weights": ("policy", WEIGHTS),
    "send_weights_async": ("policy", WEIGHTS),
    "wait_ack": (),
    "receive_weights": (0.0,),
    "send_ack": (),
    "check_ack": (),
    "close": (),
}


ELSEWHERE = {("pipe", "send_weights"), ("pipe", "wait_ack"), ("pipe", "receive_weights"), ("line", "send_weights")}
"""There is one answer in the pipe; and over a line nobody sends by himself."""


def methods(kind: str, transport: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for name, arguments in CALLS.items():
        if hasattr(transport, name) and (kind, name) not in ELSEWHERE:
            yield name, arguments


@pytest.mark.parametrize("kind", TRANSPORTS)
async def test_in_a_coroutine_every_method_returns_a_work(kind: str) -> None:
    with TRANSPORTS[kind]() as transport:
        for name, arguments in methods(kind, transport):
            work = getattr(transport, name)(*arguments)
            assert isinstance(work, Work), name
            assert await work is None
        if kind != "none":
            assert await transport.close() is None, "a second time is nothing"


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_elsewhere_it_blocks_and_returns_nothing(kind: str) -> None:
    with TRANSPORTS[kind]() as transport:
        for name, arguments in methods(kind, transport):
            assert getattr(transport, name)(*arguments) is None, name


class Busy:
    """What a thread does until the loop lets it go on; or it says that the loop was held up."""

    def __init__(self) -> None:
        self.begun, self._goes_on = threading.Event(), threading.Event()
        self.was_held_up = False

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.begun.set()
        self.was_held_up = not self._goes_on.wait(10)

    async def outlast(self, closing: Any) -> None:
        """The closing goes on while the loop does something else."""
        for _ in range(5):
            await asyncio.sleep(0)
        assert not closing.done()
        self._goes_on.set()
        await closing
        assert not self.was_held_up


async def test_the_closing_of_a_transport_of_torchs_job_waits_for_its_thread_and_holds_up_no_loop() -> None:
    busy = Busy()
    transport = DistributedTransport(new_store(), 1)
    transport._opened(is_sender=True)
    transport._thread.submit(busy)
    await busy.outlast(transport.close())


async def test_a_store_that_does_not_answer_holds_up_no_loop_that_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Busy()
    interrupt = StoreMail.interrupt

    def slowly(mail: StoreMail, stop: threading.Event) -> None:
        busy()
        interrupt(mail, stop)

    monkeypatch.setattr(StoreMail, "interrupt", slowly)
    transport = DistributedTransport(new_store(), 1)
    assert await transport.receive_weights(0.01) is None
    await busy.outlast(transport.close())


def new_store() -> Any:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


async def test_a_transport_of_torchs_job_that_is_closed_while_it_packs_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packs, goes_on, pack = threading.Event(), threading.Event(), distributed._pack

    def slowly(*args: Any) -> Any:
        packs.set()
        assert goes_on.wait(10)
        return pack(*args)

    monkeypatch.setattr(distributed, "_pack", slowly)
    store = new_store()
    transport = DistributedTransport(store, 1)
    sending = transport.send_weights("policy", {"w": torch.zeros(1 << 20)})
    assert await asyncio.to_thread(packs.wait, 10)
    closing = transport.close()
    goes_on.set()
    await closing
    with pytest.raises(ClosedError, match="was closed while it packed"):
        await sending
    assert not store.check(["NODE_1_count"])


async def test_an_answer_that_is_waited_for_past_the_closing_does_not_come() -> None:
    transport = DistributedTransport(new_store(), 1)
    await transport.send_weights_async("policy", WEIGHTS)
    waiting = transport.wait_ack()
    await asyncio.sleep(0)  # it begins
    closing = transport.close()
    with pytest.raises(ClosedError):
        await waiting
    await closing
