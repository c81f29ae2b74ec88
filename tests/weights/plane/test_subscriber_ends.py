"""Closing of a subscriber: everything is released, in every thread and under cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from rlinf_async import MultiProcessWeightSyncScheme
from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost
from rlinf_async.weights import Publisher, Subscriber
from tests._support.weight_parts import LocalLink
from tests.weights.ends import both
from tests.weights.pairs import pair

LARGE = 400_000
"""Elements that are looked at in a thread."""


def large(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((LARGE,), value)}


def has_given_all_back(subscriber: Subscriber) -> bool:
    told = isinstance(subscriber.link.error, ClosedError)
    return told and subscriber._serving is None and repr(subscriber._applying.leases) == "<Leases of 0 slots>"


# -- cancelled ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def held_up(subscriber: Subscriber) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Says that it looks at a version, in its thread, and goes on when it is told."""
    compare, looks, goes_on = subscriber._applying.destination.compare, threading.Event(), threading.Event()

    def slow(views: Any, extra: Any) -> None:
        compare(views, extra)
        looks.set()
        goes_on.wait(20)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subscriber._applying.destination, "compare", slow)
        try:
            yield looks, goes_on
        finally:
            goes_on.set()


@pytest.mark.parametrize("turns", range(4))
async def test_a_close_that_is_cancelled_while_it_waits_gives_everything_back(turns: int) -> None:
    destination = large(0.0)
    async with pair(large(0.0), destination) as (publisher, (subscriber,)):
        await (await publisher.publish(large(1.0)))
        with held_up(subscriber) as (looks, goes_on):
            (await publisher.publish(large(2.0))).cancel()
            assert await asyncio.to_thread(looks.wait, 20)
            closing = asyncio.create_task(subscriber.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.sleep(0)
            goes_on.set()
            async with asyncio.timeout(20):
                await asyncio.wait([closing])
                assert closing.cancelled()
                if not turns:  # it had not begun
                    await subscriber.close()
                while subscriber._serving is not None:
                    await asyncio.sleep(0)
        assert has_given_all_back(subscriber)
        assert set(destination["w"].tolist()) == {1.0}


async def test_two_who_close_it_both_wait_for_the_end() -> None:
    async with pair(large(0.0), large(0.0)) as (publisher, (subscriber,)):
        await (await publisher.publish(large(1.0)))
        with held_up(subscriber) as (looks, goes_on):
            (await publisher.publish(large(2.0))).cancel()
            assert await asyncio.to_thread(looks.wait, 20)
            closing = [asyncio.create_task(subscriber.close()) for _ in range(2)]
            for _ in range(5):
                await asyncio.sleep(0)
            assert [task.done() for task in closing] == [False, False]
            goes_on.set()
            await asyncio.gather(*closing)
        assert has_given_all_back(subscriber)


@pytest.mark.parametrize("turns", range(6))
async def test_a_scheme_whose_close_is_cancelled_gives_everything_back(turns: int) -> None:
    async with both("multiprocess") as ends:
        await ends.deliver()
        ends.receiver.serve()
        subscriber, transport = ends.receiver._subscriber, ends.receiver._transport
        closing = asyncio.ensure_future(ends.schemes[1].close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        async with asyncio.timeout(20):
            await asyncio.wait([closing])
            while transport._link is not None:
                await asyncio.sleep(0)
        assert has_given_all_back(subscriber)


async def test_a_closed_one_says_so_at_once() -> None:
    async with pair(large(0.0), large(0.0)) as (publisher, (subscriber,)):
        await (await publisher.publish(large(1.0)))
        await subscriber.close()
        for use in (
            subscriber.connect(20),
            subscriber.receive(20),
            subscriber.accept(print),
            subscriber.wait_version(2),
        ):
            with pytest.raises(ClosedError, match="of 'policy' is closed"):
                await use
        with pytest.raises(ClosedError):
            subscriber.serve()


async def test_one_that_is_closed_before_it_has_served_meets_nobody() -> None:
    to_receiver, to_sender = LocalLink.pair()
    async with Publisher(large(1.0)) as publisher:
        await publisher.publish(worker_ids=[])
        subscriber = Subscriber(to_sender, large(0.0))
        subscriber.serve()
        publisher.add("it", to_receiver)
        await subscriber.close()
        with pytest.raises(ClosedError, match="of 'policy' is closed"):
            await subscriber.receive(20)
        assert not subscriber.has_met


# -- in another thread ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served_elsewhere(serve: Callable[[], asyncio.Task[None]]) -> Iterator[threading.Thread]:
    """In a thread that ends when the serving does."""
    serves = threading.Event()

    async def main() -> None:
        serving = serve()
        await asyncio.sleep(0)
        serves.set()
        await asyncio.wait([serving])

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    assert serves.wait(20)
    yield thread
    thread.join(20)


def closed(subscriber: Subscriber) -> None:
    asyncio.run(asyncio.wait_for(subscriber.close(), 20))


def test_a_subscriber_that_serves_in_another_thread_is_closed() -> None:
    _, link = LocalLink.pair()
    subscriber = Subscriber(link, large(0.0))
    with served_elsewhere(subscriber.serve) as thread:
        closed(subscriber)
        assert has_given_all_back(subscriber)
    assert not thread.is_alive()


def test_a_scheme_that_serves_in_another_thread_is_closed() -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        scheme = MultiProcessWeightSyncScheme()
        scheme.init_on_worker("policy", pipe=theirs, model=large(0.0))
        with served_elsewhere(scheme.get_receiver().serve) as thread:
            closing = threading.Thread(target=scheme.close, daemon=True)
            closing.start()
            closing.join(20)
            assert not closing.is_alive()
        assert not thread.is_alive()


async def served(subscriber: Subscriber) -> asyncio.Task[None]:
    serving = subscriber.serve()
    await asyncio.sleep(0)
    return serving


def test_what_serves_in_a_loop_that_stands_still_is_not_waited_for() -> None:
    _, link = LocalLink.pair()
    subscriber = Subscriber(link, large(0.0))
    loop = asyncio.new_event_loop()
    serving = loop.run_until_complete(served(subscriber))
    closed(subscriber)
    loop.run_until_complete(asyncio.wait([serving]))
    assert serving.cancelled()
    assert has_given_all_back(subscriber)
    loop.close()


def test_what_served_in_a_loop_that_is_closed_is_not_waited_for() -> None:
    _, link = LocalLink.pair()
    subscriber = Subscriber(link, large(0.0))
    loop = asyncio.new_event_loop()
    serving = loop.run_until_complete(served(subscriber))
    serving._log_destroy_pending = False  # type: ignore[attr-defined]  # which is the fault of the loop's owner
    loop.close()
    closed(subscriber)
    assert isinstance(link.error, ClosedError)


def test_a_loop_that_stops_while_it_is_waited_for_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    _, link = LocalLink.pair()
    subscriber = Subscriber(link, large(0.0))
    loop = asyncio.new_event_loop()
    serves, is_asked, begun = threading.Event(), threading.Event(), []
    call = loop.call_soon_threadsafe

    def hear(*args: Any, **kwargs: Any) -> Any:
        called = call(*args, **kwargs)
        is_asked.set()
        return called

    def begin() -> None:
        begun.append(subscriber.serve())
        serves.set()
        is_asked.wait(20)
        loop.stop()

    monkeypatch.setattr(loop, "call_soon_threadsafe", hear)
    loop.call_soon(begin)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    assert serves.wait(20)
    closed(subscriber)
    thread.join(20)
    loop.run_until_complete(asyncio.wait(begun))
    assert begun[0].done()
    loop.close()


# -- forked ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apply", ["copy", "map"])
async def test_a_forked_process_closes_its_copy_and_waits_for_nothing_that_is_its_parents(apply: str) -> None:
    destination = large(0.0)
    async with pair(large(1.0), destination, apply=apply) as (publisher, (subscriber,)):
        await (await publisher.publish())
        subscriber._applying._writing.acquire()  # as threads of the parent that write and read just then
        subscriber.gate._readers += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            child = os.fork()
        if child == 0:
            code = 1
            try:
                asyncio.run(asyncio.wait_for(subscriber.close(), 10))
                code = 0
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        subscriber._applying._writing.release()
        subscriber.gate._leave(writes=False)
        await (await publisher.publish(large(2.0)))
        assert destination["w"].unique().tolist() == [2.0]


# -- what ends serving, and what does not -----------------------------------------------------------------------------


@pytest.mark.parametrize("end", [PeerLost("gone"), DeadlineExceeded("no such group"), ValueError("not a word")])
async def test_serving_ends_with_its_link_whatever_has_ended_that(end: Exception) -> None:
    _, to_sender = LocalLink.pair()
    async with Subscriber(to_sender, large(0.0)) as subscriber:
        serving = subscriber.serve()
        await asyncio.sleep(0)
        to_sender.close(end)
        await asyncio.wait_for(serving, 5)
        with pytest.raises(type(end), match=str(end)):
            await subscriber.wait_version(1, 5)


@pytest.mark.parametrize("failure", [PeerLost, ClosedError])
async def test_serving_goes_on_after_an_error_of_the_model_itself(failure: type[Exception]) -> None:
    seen: list[float] = []

    def take(weights: Any) -> None:
        seen.append(float(weights[("w",)][0]))
        if len(seen) == 1:
            raise failure("somebody whom the model talks to")

    async with pair(large(0.0), take) as (publisher, (subscriber,)):
        with pytest.raises(failure, match="whom the model talks to"):
            await (await publisher.publish(large(1.0)))
        await asyncio.wait_for((await publisher.publish(large(2.0))).async_wait(), 5)
        assert (seen, subscriber.version) == ([1.0, 2.0], 2)


async def test_serving_ends_in_silence_where_the_process_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(large(0.0), large(0.0)) as (publisher, (subscriber,)):
        await (await publisher.publish(large(1.0)))
        serving = subscriber._serving
        assert serving is not None
        at_its_end = ThreadPoolExecutor(1)
        at_its_end.shutdown()  # as all of them are at the end of the interpreter
        with monkeypatch.context() as patch:
            patch.setattr(subscriber._applying._worker_thread, "_thread", lambda: at_its_end)
            pending = await publisher.publish(large(2.0))
            await asyncio.wait_for(asyncio.shield(serving), 5)
        with pytest.raises(ClosedError, match="this process ends"):
            await pending
    assert "could not be applied" not in caplog.text


async def test_a_version_for_which_no_thread_starts_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, ["weights of policy_0"]

    def starts(thread: threading.Thread) -> None:
        if thread.name in refused:
            refused.remove(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    loaded: list[float] = []
    async with pair(large(0.0), lambda weights: loaded.append(float(weights["w",][0]))) as (publisher, (subscriber,)):
        monkeypatch.setattr(threading.Thread, "start", starts)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await (await publisher.publish(large(1.0)))
        await asyncio.wait_for(await publisher.publish(large(2.0)), 5)
        assert (refused, loaded, subscriber.version) == ([], [2.0], 2)


async def test_both_ends_give_their_memory_back_where_no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: object) -> None:
        raise RuntimeError("can't start new thread")

    async with pair({"w": torch.zeros(1)}, {"w": torch.zeros(1)}) as (publisher, (subscriber,)):
        await (await publisher.publish({"w": torch.ones(1)}))
        store = publisher._store
        monkeypatch.setattr(threading.Thread, "start", never)
        for end in (subscriber, publisher):
            with contextlib.suppress(RuntimeError):
                await end.close()
        assert has_given_all_back(subscriber)
        assert repr(store).startswith("<Store of 0 slots")
