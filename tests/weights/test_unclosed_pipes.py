"""Ends over pipes that are dropped without being closed, or used in a forked process: transports, unmet ends, loops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from rlinf_async import MPTransport, MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme
from rlinf_async.errors import DeadlineExceeded, ForkedProcessError
from tests._support import leaks
from tests._support.forked_children import exit_code, forked
from tests.weights.ends import Tied

every_kind = pytest.mark.parametrize("kind", [MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme])

Pipes = tuple[Any, Any]

pytestmark = pytest.mark.slow


def large(value: float) -> dict[str, torch.Tensor]:
    """Of which no pipe takes all at once, and for which a thread is asked; each is too small for the threads of torch,
    which a forked process lacks."""
    return {f"w{number}": torch.full((2000,), value) for number in range(300)}


def values(weights: dict[str, torch.Tensor]) -> set[float]:
    return {float(tensor[place]) for tensor in weights.values() for place in (0, -1)}


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        yield ours, theirs


def what_is_left_of(use: Callable[[], None]) -> tuple[list[str], list[str]]:
    """Leaks, and warnings of unclosed resources, of ends that are dropped after their use."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        use()  # what the process has of its first one
        gc.collect()
        before = leaks.take()
        told.clear()
        use()
        gc.collect()
        left = leaks.settle(before)
    return left, [str(each.message) for each in told if each.category is ResourceWarning]


UNCLOSED = "unclosed publisher of 'policy': close() it, or its scheme"


def exchange_messages(pipes: Pipes) -> None:
    sending, receiving = (MPTransport(pipe, timeout=60) for pipe in pipes)
    works = threading.Thread(target=sending.send_weights, args=("policy", large(1.0)))
    works.start()
    found = receiving.receive_weights(60)
    receiving.send_ack()
    works.join(20)
    assert found[0] == "policy"
    assert values(found[1]) == {1.0}


@pytest.mark.parametrize("use", [exchange_messages])
def test_transports_that_are_dropped_leave_nothing(pipes: Pipes, use: Callable[[Pipes], None]) -> None:
    assert what_is_left_of(lambda: use(pipes)) == ([], [])


@every_kind
def test_a_sender_that_nobody_has_met_leaves_nothing_and_its_notice_harms_nobody(kind: Any, pipes: Pipes) -> None:
    def send() -> None:
        scheme = kind(ack_timeout=0.1)
        scheme.init_on_sender("policy", pipes=[pipes[0]], source_model=Tied(1.0))
        with pytest.raises(DeadlineExceeded):
            scheme.get_sender().send()

    assert what_is_left_of(send) == ([], [UNCLOSED])
    sending, receiving, model = kind(), kind(), Tied()
    with contextlib.closing(sending), contextlib.closing(receiving):
        sending.init_on_sender("policy", pipes=[pipes[0]], source_model=Tied(2.0))
        receiving.init_on_worker("policy", pipe=pipes[1], model=model)
        sending.get_sender().send_async()
        assert receiving.get_receiver().receive(20.0)
        sending.get_sender().wait_async()
        assert model.values() == {2.0}


@every_kind
def test_a_receiver_that_has_met_nobody_leaves_nothing(kind: Any, pipes: Pipes) -> None:
    def receive() -> None:
        scheme = kind()
        scheme.init_on_worker("policy", pipe=pipes[1], model=Tied())
        assert not scheme.get_receiver().receive(0.05)

    assert what_is_left_of(receive) == ([], [])


@every_kind
@pytest.mark.parametrize("has_pipe", [True, False])
def test_ends_that_met_by_a_loop_leave_nothing(kind: Any, pipes: Pipes, has_pipe: bool) -> None:
    if kind is MultiProcessWeightSyncScheme and not has_pipe:
        pytest.skip("that worker has to be told of its pipe")

    def meet() -> None:
        sending, receiving, model = kind(), kind(), Tied()
        sending.init_on_sender("policy", pipes=[pipes[0]], source_model=Tied(1.0))
        receiving.init_on_worker("policy", model=model, **({"pipe": pipes[1]} if has_pipe else {}))
        sending.get_sender().send_async()
        (_model_id, notice), _ = pipes[1].recv()
        receiving.get_receiver().apply_weights(notice)
        sending.get_sender().wait_async()
        assert model.values() == {1.0}

    assert what_is_left_of(meet) == ([], [UNCLOSED])


def test_transports_are_of_use_in_a_forked_process(pipes: Pipes) -> None:
    sending, receiving = (MPTransport(pipe, timeout=60) for pipe in pipes)

    def receive() -> None:
        for value in (1.0, 2.0):
            _, found = receiving.receive_weights(60)
            assert values(found) == {value}
            receiving.send_ack()

    with forked(receive) as child:
        for value in (1.0, 2.0):
            sending.send_weights("policy", large(value))
        assert exit_code(child) == 0
    for transport in (sending, receiving):
        transport.close()


@every_kind
def test_a_sender_that_waits_for_its_worker_is_of_no_use_in_a_forked_process_and_goes_on(
    kind: Any, pipes: Pipes
) -> None:
    sending, receiving, model = kind(), kind(), Tied()
    sending.init_on_sender("policy", pipes=[pipes[0]], source_model=Tied(1.0))
    sending.get_sender().send_async()

    def look() -> None:
        for call in (sending.get_sender().wait_async, sending.get_sender().connect):
            with pytest.raises(ForkedProcessError, match="belongs to process"):
                call()
        sending.close()

    with forked(look) as child:
        assert exit_code(child) == 0
    receiving.init_on_worker("policy", pipe=pipes[1], model=model)
    assert receiving.get_receiver().receive(20.0)
    sending.get_sender().wait_async()
    assert model.values() == {1.0}
    sending.close()
    receiving.close()


def test_a_receiver_that_is_handed_a_notice_in_a_forked_process_refuses_it(pipes: Pipes) -> None:
    sending, receiving = SharedMemWeightSyncScheme(), SharedMemWeightSyncScheme()
    sending.init_on_sender("policy", pipes=[pipes[0]], source_model=Tied(1.0))
    receiving.init_on_worker("policy", model=Tied())
    sending.get_sender().send_async()
    (_model_id, notice), _ = pipes[1].recv()
    receiving.get_receiver().apply_weights(notice)
    sending.get_sender().wait_async()

    def look() -> None:
        with pytest.raises(ForkedProcessError, match="'policy' belongs to process"):
            receiving.get_receiver().apply_weights(notice)
        receiving.close()

    with forked(look) as child:
        assert exit_code(child) == 0
    sending.close()
    receiving.close()


async def test_ends_that_are_dropped_in_a_loop_leave_nothing(pipes: Pipes) -> None:
    async def meet() -> None:
        sending, receiving, model = MultiProcessWeightSyncScheme(), MultiProcessWeightSyncScheme(), Tied()
        sending.init_on_sender("policy", pipes=[pipes[0]], source_model=Tied(1.0))
        receiving.init_on_worker("policy", pipe=pipes[1], model=model)
        work = sending.get_sender().send()
        assert await receiving.get_receiver().receive(20.0)
        await work
        assert model.values() == {1.0}

    loop = asyncio.get_running_loop()
    with (
        warnings.catch_warnings(record=True) as told,
        ThreadPoolExecutor(1) as aside,
    ):  # the loop's own may get a second
        warnings.simplefilter("always")
        await meet()
        await loop.run_in_executor(aside, gc.collect)
        before = leaks.take()
        told.clear()
        await meet()
        await loop.run_in_executor(aside, gc.collect)
        assert await loop.run_in_executor(aside, leaks.settle, before) == []
    assert [str(each.message) for each in told if each.category is ResourceWarning] == [UNCLOSED]
