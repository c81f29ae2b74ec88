"""A worker's receiver: versions, and deadlines of waits."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from rlinf_async import MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme
from rlinf_async.errors import ClosedError, DeadlineExceeded, ForkedProcessError, RemoteError
from rlinf_async.work import Work
from tests._support.forked_children import forked
from tests.weights.ends import SCHEMES, Tied, both

# -- which version --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_a_version_that_is_handed_to_a_linked_receiver_counts(apply: str) -> None:
    async with both("multiprocess", apply=apply) as ends:
        await ends.deliver(Tied(1.0))
        receiver = ends.receiver
        waiting = receiver.wait_version(5, 20)
        await receiver.apply_weights(Tied(5.0).state_dict(), 5)
        await waiting
        assert (receiver.version, receiver.published, receiver.staleness) == (5, 5, 0)
        async with receiver.reading() as version:
            assert (version, ends.sees) == (5, {5.0})
        await receiver.apply_weights(Tied(6.0).state_dict(), 5)
        assert ends.sees == {5.0}, "the same one for a second time"
        with pytest.raises(ValueError, match="version 4 of 'policy' is not after version 5"):
            await receiver.apply_weights(Tied(4.0).state_dict(), 4)
        await ends.deliver(Tied(7.0), version=7)
        assert (receiver.version, ends.sees) == (7, {7.0})


async def test_without_a_version_the_senders_count_goes_on_and_its_next_one_is_applied() -> None:
    async with both("multiprocess") as ends:
        await ends.deliver(Tied(1.0))
        await ends.receiver.apply_weights(Tied(9.0).state_dict())
        assert (ends.receiver.version, ends.sees) == (1, {9.0})
        await ends.deliver(Tied(2.0))
        assert (ends.receiver.version, ends.sees) == (2, {2.0})


async def test_before_there_is_a_sender_a_receiver_counts_what_it_is_handed() -> None:
    async with both("multiprocess") as ends:
        async with ends.receiver.reading() as version:
            assert version == 0
        await ends.receiver.apply_weights(Tied(3.0).state_dict())
        await ends.receiver.wait_version(1, 5)
        assert ends.sees == {3.0}


# -- for how long ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["multiprocess", "shared memory", "distributed"])
async def test_a_reader_who_stays_holds_up_nobody_for_ever(kind: str) -> None:
    async with both(kind, ack_timeout=0.5) as ends, asyncio.timeout(40):
        await ends.deliver(Tied(1.0))
        async with ends.receiver.reading():
            with pytest.raises((DeadlineExceeded, RemoteError), match="reader"):
                await ends.deliver(Tied(2.0), timeout=30)
        assert "a reader has not left" in str(ends.errors[0])
        assert ends.sees == {1.0}
        await ends.deliver(Tied(3.0), timeout=30)
        assert ends.sees == {3.0}


@pytest.mark.parametrize("kind", ["multiprocess", "worker", "module transform"])
async def test_a_reader_who_stays_holds_up_what_is_handed_over_until_the_deadline(kind: str) -> None:
    async with both(kind, ack_timeout=0.05) as ends, asyncio.timeout(40):
        receiver = ends.receiver
        if kind == "multiprocess":
            await ends.deliver(Tied(1.0), timeout=30)
        async with receiver.reading():
            with pytest.raises(DeadlineExceeded, match="a reader has not left"):
                await receiver.apply_weights(Tied(2.0).state_dict())
        await receiver.apply_weights(Tied(3.0).state_dict())
        assert ends.sees == {3.0}


@pytest.mark.parametrize("kind", ["multiprocess", "worker"])
async def test_who_comes_to_read_waits_as_long_as_he_says(kind: str) -> None:
    async with both(kind) as ends:
        async with ends.receiver._standing.gate.writing():
            with pytest.raises(DeadlineExceeded):
                async with ends.receiver.reading(0.01):
                    pass
        async with ends.receiver.reading(timeout=5) as version:
            assert version == 0


@pytest.mark.parametrize("kind", ["multiprocess", "worker"])
async def test_what_waits_for_readers_when_all_is_closed_is_not_written(kind: str) -> None:
    async with both(kind) as ends, asyncio.timeout(40):
        receiver = ends.receiver
        await receiver.apply_weights(Tied(1.0).state_dict())
        async with receiver.reading():
            applying = receiver.apply_weights(Tied(2.0).state_dict())
            await asyncio.sleep(0)
            await receiver.close()
        with pytest.raises(ClosedError):
            await applying
        assert (receiver.version, ends.sees) == (1, {1.0})


def test_a_thread_that_waits_for_weights_hears_of_the_closing() -> None:
    ours, theirs = multiprocessing.Pipe()
    sending, receiving = MultiProcessWeightSyncScheme(), MultiProcessWeightSyncScheme()
    waits = threading.Event()
    with ours, theirs, ThreadPoolExecutor(1) as threads:
        sending.init_on_sender("policy", pipes=[ours], source_model=Tied(1.0))
        receiving.init_on_worker("policy", pipe=theirs, model=Tied())
        receiver = receiving.get_receiver()
        first = threads.submit(receiver.receive, 20.0)
        sending.get_sender().send(timeout=20)
        assert first.result(20)
        receive = receiver._subscriber.receive

        async def tell_and_receive(timeout: float) -> Any:
            waits.set()
            return await receive(timeout)

        receiver._subscriber.receive = tell_and_receive
        second = threads.submit(receiver.receive, 20.0)
        assert waits.wait(20)
        receiving.close()
        with pytest.raises(ClosedError, match="of 'policy' version 1> is closed"):
            second.result(20)
        sending.close()


@pytest.mark.parametrize("kind", ["worker", "module transform", "multiprocess"])
def test_a_thread_that_waits_for_a_version_hears_of_the_closing_and_the_version_stays(kind: str) -> None:
    with SCHEMES[kind](Tied(), Tied(1.0)) as ends, ThreadPoolExecutor(1) as threads:
        receiver = ends.receiver
        receiver.apply_weights(Tied(3.0).state_dict(), 3)
        waiting = threads.submit(receiver.wait_version, 4, 20)
        while not receiver._subscriber._changes._next._waiters:
            time.sleep(0)
        receiver.close()
        with pytest.raises(ClosedError):
            waiting.result(20)
        assert (receiver.version, ends.sees) == (3, {3.0})
        for scheme in ends.schemes:
            scheme.close()


class Mail:
    """A user's transport, by which weights have come once."""

    def __init__(self) -> None:
        self.messages: list[Any] = [("policy", Tied(9.0).state_dict()), None]

    def send_weights(self, model_id: str, weights: Any) -> None: ...

    def receive_weights(self, timeout: float = 1.0) -> Any:
        return self.messages.pop(0)


async def test_weights_whose_receive_is_cancelled_while_a_reader_stays_come_with_the_next() -> None:
    async with both("distributed") as ends:
        sending, receiver = ends.sender.send(Tied(1.0)), ends.receiver
        async with receiver.reading():
            receiving = receiver.receive(20)
            while not receiver._heard:
                await asyncio.sleep(0.01)
            receiving.cancel()
            with pytest.raises(ClosedError):
                await receiving
        assert await receiver.receive(20)
        assert (await sending).version == receiver.version == 1
        assert ends.sees == {1.0}


async def test_weights_that_come_as_their_receive_is_cancelled_come_with_the_next() -> None:
    coming: Work[Any] = Work()
    mail = Mail()
    scheme = MultiProcessWeightSyncScheme()
    receiver, model = scheme.create_receiver(), Tied()
    receiver._transport, mail.messages = mail, [coming, None]
    receiver._register_model(model)
    receiving = asyncio.ensure_future(receiver._receive(20))
    await asyncio.sleep(0)
    coming._settle(("policy", Tied(9.0).state_dict()))
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert await receiver.receive()
    assert not await receiver.receive()
    assert receiver.version == 1
    await receiver.close()


@pytest.mark.parametrize("where", ["transport", "model"])
async def test_a_cancelled_error_of_users_code_does_not_end_serve(where: str, caplog: pytest.LogCaptureFixture) -> None:
    messages = [("policy", Tied(9.0).state_dict())] * (1 if where == "transport" else 2)

    async def receive_weights(timeout: float) -> Any:
        if where == "transport" and not caplog.records:
            raise asyncio.CancelledError
        return messages.pop() if messages else await asyncio.sleep(timeout)

    class Context:
        @property
        def policy(self) -> Any:
            if where == "model" and not caplog.records:
                raise asyncio.CancelledError
            return model

    receiver, context, model = MultiProcessWeightSyncScheme().create_receiver(), Context(), Tied()
    receiver._transport = Mock(spec=Mail, receive_weights=receive_weights, version=None)
    receiver._set_context(context)
    receiver._register_model("policy")
    serving = receiver.serve()
    await receiver.wait_version(1, 10)
    assert "an update of 'None' could not be applied" in caplog.text
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    await receiver.close()


@pytest.mark.parametrize("after_a_message", [False, True])
def test_a_receiver_without_a_pipe_has_the_version_that_it_was_handed_a_notice_of(after_a_message: bool) -> None:
    ours, theirs = multiprocessing.Pipe()
    sending, receiving = SharedMemWeightSyncScheme(), SharedMemWeightSyncScheme()
    with ours, theirs, ThreadPoolExecutor(1) as threads:
        sending.init_on_sender("policy", pipes=[ours], source_model=Tied(1.0))
        receiving.init_on_worker("policy", model=Tied())
        receiver = receiving.get_receiver()
        if after_a_message:
            receiver._transport = Mail()
            assert receiver.receive()
        work = threads.submit(sending.get_sender().send, timeout=20, version=2)
        (_, notice), _ = theirs.recv()
        receiver.apply_weights(notice)
        assert work.result(20).version == 2
        receiver.wait_version(2, timeout=0)
        with receiver.reading() as version:
            assert (version, receiver.version, receiver.staleness) == (2, 2, 0)
        sending.close()
        receiving.close()


@pytest.mark.parametrize("has_met", [True, False])
def test_a_receiver_of_a_torch_job_is_of_no_use_in_a_process_that_is_forked_once_it_has_met(has_met: bool) -> None:
    with SCHEMES["distributed"](Tied(), Tied(1.0)) as ends:
        if has_met:
            ends.sender.send_async()
            assert ends.receiver.receive(20.0)
            ends.sender.wait_async()

        def look() -> None:
            if not has_met:
                assert ends.receiver.apply_weights(Tied(3.0).state_dict()) is None
                return
            for call in (lambda: ends.receiver.receive(20.0), ends.receiver.connect, ends.receiver.reading):
                with pytest.raises(ForkedProcessError, match="'policy' belongs to process"):
                    call()
            assert ends.receiver.version == 1

        with forked(look) as child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for scheme in ends.schemes:
            scheme.close()


async def test_connections_to_several_workers_share_one_deadline() -> None:
    class Slow:
        given = 0.0

        async def connect(self, timeout: float) -> None:
            self.given = timeout
            await asyncio.sleep(0.1)

    sender = MultiProcessWeightSyncScheme().create_sender()
    sender._source_model = Tied(1.0)
    transports = sender._transports = {0: Slow(), 1: Slow()}  # type: ignore[dict-item]
    with pytest.raises(DeadlineExceeded):
        await sender._connect(0.15)
    assert transports[0].given == pytest.approx(0.15, abs=0.02)
    assert transports[1].given <= 0.05
