"""Receivers that serve over a user's transport: they wait or fail, and never spin."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
import torch

from rlinf_async import WeightSyncScheme
from rlinf_async.errors import ConfigError, DeadlineExceeded
from rlinf_async.weights.transports import distributed
from tests.weights.ends import Tied, both


class Scheme(WeightSyncScheme):
    """A user's, around a transport that is given."""

    def __init__(self, transport: Any) -> None:
        super().__init__()
        self.transport = transport

    def init_on_worker(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        receiver = self.create_receiver()
        receiver._transport = self.transport
        self._become_receiver(receiver, model_id, context, kwargs["model"])

    def create_transport(self, pipe_or_context: Any) -> Any:
        return self.transport


class Transport:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers: list[Any] = []

    def send_weights(self, model_id: str, weights: Any) -> None:
        raise NotImplementedError

    def check_connection(self) -> bool:
        return True

    def send_ack(self, message: str = "updated") -> None:
        self.answers.append(message)

    def send_error(self, error: BaseException) -> None:
        self.answers.append(error)

    async def receive_weights(self, timeout: float = 1.0) -> Any:
        self.asked += 1
        return None


class Plain(Transport):
    def receive_weights(self, timeout: float = 1.0) -> Any:
        self.asked += 1
        return None


class PlainWithSomething(Transport):
    def receive_weights(self, timeout: float = 1.0) -> Any:
        return "policy", Tied(1.0).state_dict()


class Failing(Transport):
    async def receive_weights(self, timeout: float = 1.0) -> Any:
        self.asked += 1
        raise LookupError("no such place")


class Queue(Transport):
    """One that waits as it should, and now and then has something that is not for us."""

    def __init__(self) -> None:
        super().__init__()
        self.coming: asyncio.Queue[Any] = asyncio.Queue()

    async def receive_weights(self, timeout: float = 1.0) -> Any:
        self.asked += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                return await self.coming.get()
        return None


async def served(transport: Any, model: Any) -> tuple[Any, asyncio.Task[None]]:
    scheme = Scheme(transport)
    scheme.init_on_worker("policy", model=model)
    return scheme, scheme.get_receiver().serve()


@pytest.mark.parametrize("kind", [Transport, Failing])
async def test_a_transport_that_does_not_wait_ends_it_with_an_error_that_says_so(kind: Any) -> None:
    transport = kind()
    scheme, serving = await served(transport, Tied())
    turns = 0
    async with asyncio.timeout(60):
        while not serving.done():
            turns += 1
            await asyncio.sleep(0)  # which the loop still has time for
    with pytest.raises(ConfigError, match=r"receive_weights\(timeout=3600\) of .* has come back 100 times in a row"):
        await serving
    assert 100 <= transport.asked < 1000
    assert turns > 50
    await scheme.close()


@pytest.mark.parametrize("kind", [Plain, PlainWithSomething])
async def test_plain_code_is_refused_because_it_would_hold_up_the_loop(kind: Any) -> None:
    transport, model = kind(), Tied()
    scheme, serving = await served(transport, model)
    with pytest.raises(ConfigError, match="is plain code, which would hold up the loop that serve"):
        async with asyncio.timeout(60):
            await serving
    assert transport.asked <= 1
    assert model.values() == {0.0}
    assert [type(answer) for answer in transport.answers] == ([] if kind is Plain else [ConfigError])
    await scheme.close()


async def test_one_that_waits_is_asked_once_per_message_and_what_does_not_fit_is_told() -> None:
    transport, model = Queue(), Tied()
    scheme, serving = await served(transport, model)
    receiver = scheme.get_receiver()
    for version, value in enumerate((1.0, 2.0), 1):
        transport.coming.put_nowait(("policy", Tied(value).state_dict()))
        await receiver.wait_version(version, timeout=60)
        assert model.values() == {value}
    transport.coming.put_nowait(("policy", {"head.weight": torch.zeros(1)}))
    transport.coming.put_nowait(None)
    while not transport.coming.empty():
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert model.values() == {2.0}
    assert [type(answer) for answer in transport.answers[:2]] == [str, str]
    assert isinstance(transport.answers[2], KeyError)
    assert transport.asked <= 6
    assert not serving.done()
    serving.cancel()
    await asyncio.wait([serving])
    await scheme.close()


async def test_a_message_that_comes_just_when_a_wait_is_over_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = distributed._ThreadCall.async_wait

    async def late(coming: Any, timeout: float | None = None) -> Any:
        found = await wait(coming, None)
        if timeout == 0.0:
            raise DeadlineExceeded("the message is here, and so is the end of the wait")
        return found

    async with both("distributed") as ends:
        await ends.deliver()
        monkeypatch.setattr(distributed._ThreadCall, "async_wait", late)
        serving = ends.receiver.serve()
        assert (await ends.sender.send(Tied(2.0), timeout=20)).version == 2
        assert ends.sees == {2.0}
        assert not serving.done()
    serving.cancel()
    await asyncio.wait([serving])


async def test_serving_goes_on_after_somebody_was_late() -> None:
    class Late(Transport):
        async def receive_weights(self, timeout: float = 1.0) -> Any:
            self.asked += 1
            if self.asked == 1:
                raise DeadlineExceeded("a reader did not leave")
            if self.asked == 2:
                return "policy", Tied(3.0).state_dict()
            return await asyncio.Future()

    transport, model = Late(), Tied()
    scheme = Scheme(transport)
    scheme.init_on_worker("policy", model=model)
    serving = scheme.get_receiver().serve()
    async with asyncio.timeout(20):
        await scheme.get_receiver().wait_version(1)
    assert (model.values(), transport.answers) == ({3.0}, ["updated"])
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    await scheme.close()


async def test_serving_goes_on_after_an_error_of_the_model_that_would_end_a_transport() -> None:
    class Broken(Tied):
        def set_extra_state(self, state: Any) -> None:
            if state == "broken":
                raise OSError("the model's own file")

        def get_extra_state(self) -> Any:
            return "whole"

    transport, model = Queue(), Broken()
    scheme, serving = await served(transport, model)
    for state in ("broken", "whole"):
        transport.coming.put_nowait(("policy", {**Broken(2.0).state_dict(), "_extra_state": state}))
    await scheme.get_receiver().wait_version(1, timeout=20)
    assert [type(answer) for answer in transport.answers] == [OSError, str]
    assert not serving.done()
    serving.cancel()
    await asyncio.wait([serving])
    await scheme.close()
