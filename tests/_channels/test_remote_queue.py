"""Remote queues against a daemon that only records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rlinf_async._channels.remote_queue import RemoteQueue
from rlinf_async._channels.request import Put
from rlinf_async._channels.state.credit import cost
from rlinf_async._core import codec, frames
from rlinf_async._core.pool import pool
from rlinf_async._core.segment import close_fds
from rlinf_async.errors import ClosedError

CREDIT = 1 << 20


class Client:
    """Remembers what is sent; it has left at once, unless the socket is full."""

    def __init__(self) -> None:
        self.endpoint = 7
        self.user_loop = None
        self.unsent: dict[Any, None] = {}
        self.sent: list[Any] = []
        self.is_full = False
        self.waiting: list[Callable[[], None]] = []
        self.released: list[int] = []
        """How many frames, of those who wait to be told, left together."""
        self.before_held: Callable[[], object] = lambda: None

    def send(self, frame: Any, fds: Any = (), *, hold: bool = False, on_sent: Callable[[], None] | None = None) -> None:
        self.before_held() if hold else None
        self.sent.append(frame)
        close_fds(fds)
        if on_sent is not None:
            self.waiting.append(on_sent)
        if not hold:
            self.release()

    def release(self) -> None:
        self.released.append(len(self.waiting))
        if not self.is_full:
            self.drain()

    def drain(self) -> None:
        waiting, self.waiting = self.waiting, []
        for tell in waiting:
            tell()


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def queue(client: Client) -> RemoteQueue:
    """One that has credit."""
    queue = RemoteQueue(client, 0, 1, "obs", 0)  # type: ignore[arg-type]
    queue.on_queue_frame("replies", [[], [], CREDIT])
    return queue


def put(queue: RemoteQueue, value: Any) -> Put:
    encoded = codec.encode(value)
    request = Put("obs", "key", b"key", 0, encoded, encoded.nbytes, frames.WAIT, None)
    queue.start(request)
    return request


def modes(client: Client) -> list[int]:
    return [frame[8] for frame in client.sent if frame[0] == frames.PUT]


def test_a_put_is_done_when_it_has_left_as_long_as_there_is_credit(client: Client, queue: RemoteQueue) -> None:
    client.is_full = True
    first = put(queue, bytes(20_000))
    assert not first.done()
    client.drain()
    assert first.done()
    client.is_full = False
    while cost(codec.encode(bytes(20_000)).nbytes) <= queue._credit._left:
        assert put(queue, bytes(20_000)).done()
    assert not put(queue, bytes(20_000)).done()
    assert set(modes(client)[:-1]) == {frames.CREDITED}
    assert modes(client)[-1] == frames.WAIT


def test_what_was_recalled_is_returned_once_and_not_used_any_more(client: Client, queue: RemoteQueue) -> None:
    assert put(queue, 1).done()
    left = queue._credit._left
    assert 0 < left < CREDIT
    for amount in (left, 0):
        queue.on_queue_frame("recall", None)
        assert client.sent[-1][5:] == ("returned", [amount, True])
    assert not put(queue, 2).done()


def test_credit_for_what_cannot_be_packed_is_returned(
    client: Client, queue: RemoteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(carried: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr("rlinf_async._channels.remote_queue.pack_body", fail)
    request = put(queue, 1)
    with pytest.raises(MemoryError):
        request.wait()
    assert client.sent[-1][5:] == ("returned", [cost(request.nbytes), False])


def test_what_had_not_left_when_the_channel_ended_is_refused(client: Client, queue: RemoteQueue) -> None:
    client.is_full = True
    request = put(queue, 1)
    queue.end("")
    with pytest.raises(ClosedError):
        request.wait()


async def test_a_coroutine_that_never_has_to_wait_lets_others_run(queue: RemoteQueue) -> None:
    queue._credit.add(1 << 40)
    told = False

    def tell() -> None:
        nonlocal told
        told = True

    asyncio.get_running_loop().call_soon(tell)
    for size in (1, 10_000):
        told = False
        asyncio.get_running_loop().call_soon(tell)
        item = bytes(size)
        for _ in range(50_000):
            await put(queue, item)
            if told:
                break
        assert told


async def test_puts_of_many_coroutines_come_to_leave_in_one_frame(
    client: Client, queue: RemoteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlinf_async._channels.batching._BURST_WINDOW_S", 60.0)
    queue._credit.add(1 << 40)

    async def produce() -> None:
        for number in range(1000):
            await put(queue, number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(produce())
    together = [len(frame[6][0]) for frame in client.sent if frame[0] == frames.QUEUE and frame[5] == "requests"]
    assert len(modes(client)) + sum(together) == 8 * 1000
    assert max(together) == 8


async def test_what_waits_to_be_batched_leaves_before_credit_is_returned(client: Client, queue: RemoteQueue) -> None:
    await put(queue, 0)
    queue._batching._burst_until = asyncio.get_running_loop().time() + 60
    held = put(queue, 1)
    assert not held.done()
    queue.on_queue_frame("recall", None)
    assert [frame[5] for frame in client.sent[-2:]] == ["requests", "returned"]
    assert held.done()


async def test_puts_that_nobody_awaits_before_the_next_leave_several_in_a_frame(
    client: Client, queue: RemoteQueue
) -> None:
    under_way = [put(queue, index) for index in range(40)]
    await asyncio.sleep(0)
    assert all(request.done() for request in under_way)
    lone = [frame for frame in client.sent if frame[0] == frames.PUT]
    together = [len(frame[6][0]) for frame in client.sent if frame[0] == frames.QUEUE and frame[5] == "requests"]
    assert len(lone) + sum(together) == 40
    assert len(lone) <= 5
    assert max(together) == 8  # so that the daemon has something to do while others follow


async def test_a_put_that_is_awaited_before_the_next_leaves_at_once(client: Client, queue: RemoteQueue) -> None:
    await put(queue, "the first of a turn lets others put too")
    for index in range(20):
        request = put(queue, index)
        assert request.done() or request.pauses
        await request
    assert sum(frame[0] == frames.PUT for frame in client.sent) >= 15


def test_puts_that_nobody_awaits_leave_at_once_where_no_loop_runs(client: Client, queue: RemoteQueue) -> None:
    assert all(put(queue, index).done() for index in range(20))
    assert modes(client) == [frames.CREDITED] * 20


async def test_large_ones_of_which_several_are_under_way_leave_together(client: Client, queue: RemoteQueue) -> None:
    queue._credit.add(1 << 40)
    under_way = [put(queue, bytes(200_000)) for _ in range(4 + 4 + 3)]
    assert client.released[-1] == 4
    assert not under_way[-1].done()
    await asyncio.sleep(0)
    assert all(request.done() for request in under_way)
    assert client.released[-1] == 3
    pool.close()


@pytest.mark.parametrize("size", [1, 5_000, 200_000])
async def test_a_put_that_is_given_up_while_it_is_held_is_withdrawn_before_it_leaves(
    client: Client, queue: RemoteQueue, size: int
) -> None:
    queue._credit.add(1 << 40)
    under_way = [put(queue, bytes(size)) for _ in range(7)]
    last = under_way[-1]
    last.give_up(ClosedError("nobody wants it"))
    assert client.sent[-1][5:] == ("cancel", [last.number])
    assert last.number not in [frame[5] for frame in client.sent if frame[0] == frames.PUT]
    await asyncio.sleep(0)
    assert all(request.done() for request in under_way)  # and the queue hears of its number, behind which others wait
    *_, number = client.sent[-1][6][0][-1][:1] if size == 1 else client.sent[-1][5:6]
    assert number == last.number
    pool.close()


async def test_what_another_thread_sends_meanwhile_leaves_nothing_behind(client: Client, queue: RemoteQueue) -> None:
    queue._credit.add(1 << 40)
    client.before_held = queue.send_held  # in the middle of a put, as where credit is recalled just then
    under_way = [put(queue, bytes(200_000)) for _ in range(7)]
    await asyncio.sleep(0)
    assert all(request.done() for request in under_way)
    pool.close()


@pytest.mark.parametrize("size", [1, 5_000, 200_000])
def test_what_is_held_by_a_loop_that_was_stopped_leaves_when_a_thread_waits_for_it(
    client: Client, queue: RemoteQueue, size: int
) -> None:
    queue._credit.add(1 << 40)
    under_way: list[Put] = []
    loop = asyncio.new_event_loop()

    def put_and_stop() -> None:
        under_way.extend(put(queue, bytes(size)) for _ in range(7))
        loop.stop()

    loop.call_soon(put_and_stop)
    loop.run_forever()
    loop.close()
    assert not under_way[-1].done()
    for request in under_way:
        request.wait(5)
    pool.close()


def test_a_put_that_has_left_keeps_no_item(client: Client, queue: RemoteQueue) -> None:
    request = put(queue, bytes(200_000))
    assert request.done()
    assert request.carried is None
    pool.close()


async def test_what_is_held_when_the_channel_ends_never_leaves(client: Client, queue: RemoteQueue) -> None:
    queue._credit.add(1 << 40)
    under_way = [put(queue, index if index < 6 else bytes(200_000)) for index in range(8)]
    sent = len(client.sent)
    queue.end("")
    await asyncio.sleep(0)
    assert len(client.sent) == sent
    assert not queue._batching.large
    for request in under_way[-4:]:
        with pytest.raises(ClosedError):
            await request
    pool.close()
