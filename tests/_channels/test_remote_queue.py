"""Remote queues against a daemon that only records."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from rlinf_async._channels.reading import ChannelItems
from rlinf_async._channels.remote_queue import RemoteQueue
from rlinf_async._channels.request import Confirmation, Get, Put, QueueQuery
from rlinf_async._channels.state.put_window import WINDOW_BYTES, cost
from rlinf_async._core import codec, frames
from rlinf_async._core.giving_back import GivingBack
from rlinf_async._core.payload import pack_body
from rlinf_async._core.pool import pool
from rlinf_async._core.segment import close_fds
from rlinf_async._core.taken_page import NOTES, TakenPage, Takings
from rlinf_async.errors import ClosedError, DeadlineExceeded, SerializationError, TransferFailed


class Client:
    """Remembers what is sent; it has left at once, unless the socket is full."""

    def __init__(self) -> None:
        self.endpoint = 7
        self.node = 0
        self.user_loop = None
        self.unsent: dict[Any, None] = {}
        self.takings = Takings(self.later)
        self.giving_back = GivingBack()
        self.closed = None
        self.loop = SimpleNamespace(call_soon_threadsafe=lambda callback: None)
        self.sent: list[Any] = []
        self.is_full = False
        self.waiting: list[Callable[[], None]] = []
        self.released: list[int] = []
        """How many frames, of those who wait to be told, left together."""
        self.timers: list[Callable[[], None]] = []
        self.before_held: Callable[[], object] = lambda: None

    def send(
        self,
        frame: Any,
        fds: Any = (),
        *,
        hold: bool = False,
        now: bool = False,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        self.before_held() if hold else None
        self.sent.append(frame)
        close_fds(fds)
        if on_sent is not None:
            self.waiting.append(on_sent)
        if not hold:
            self.release()

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.timers.append(callback)

    def release(self) -> None:
        self.released.append(len(self.waiting))
        if not self.is_full:
            self.drain()

    def drain(self) -> None:
        waiting, self.waiting = self.waiting, []
        for tell in waiting:
            tell()


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.takings.page = None


@pytest.fixture
def queue(client: Client) -> RemoteQueue:
    """One whose daemon knows this process as a producer."""
    queue = new_queue(client)
    request = put(queue, 0)
    queue.on_queue_frame("replies", [[1], [], 0])
    request.wait()
    client.sent.clear()
    client.released.clear()
    return queue


def new_queue(client: Client, max_bytes: int = 0) -> RemoteQueue:
    return RemoteQueue(client, 0, 1, "obs", max_bytes)  # type: ignore[arg-type]


def put(queue: RemoteQueue, value: Any) -> Put:
    encoded = codec.encode(value)
    request = Put("obs", "key", b"key", 0, encoded, encoded.nbytes, frames.WAIT, None)
    queue.start(request)
    return request


def modes(client: Client) -> list[int]:
    return [frame[8] for frame in client.sent if frame[0] == frames.PUT]


def test_a_put_is_done_when_it_has_left_as_long_as_the_window_is_open(client: Client, queue: RemoteQueue) -> None:
    client.is_full = True
    first = put(queue, bytes(20_000))
    assert not first.done()
    client.drain()
    assert first.done()
    client.is_full = False
    each = cost(first.nbytes)
    puts = [put(queue, bytes(20_000)) for _ in range(WINDOW_BYTES // each + 3)]
    left = sum(request.done() for request in puts)
    assert left == WINDOW_BYTES // each
    assert set(modes(client)) == {frames.SENT}
    queue.on_queue_frame("replies", [[], [], WINDOW_BYTES // 2])
    assert all(request.done() for request in puts)
    assert [frame[5] for frame in client.sent] == list(range(2, len(puts) + 3))


def test_the_first_put_and_those_to_another_node_or_beyond_the_window_wait_for_an_answer(client: Client) -> None:
    queue = new_queue(client)
    assert not put(queue, "first").done()
    queue.on_queue_frame("replies", [[1], [], 0])
    assert put(queue, "second").done()
    queue._window.size = 1000
    put(queue, bytes(5000))
    assert modes(client) == [frames.WAIT, frames.SENT, frames.WAIT]
    far = RemoteQueue(client, 1, 1, "obs", 0)  # type: ignore[arg-type]
    put(far, "first")
    far.on_queue_frame("replies", [[1], [], 0])
    assert not put(far, "second").done()


def test_a_put_that_needs_a_descriptor_waits_for_its_answer(client: Client, queue: RemoteQueue) -> None:
    large = Put("obs", "key", b"key", 0, codec.encode(1), frames.MAX_UNSEALED_BYTES + 1, frames.WAIT, None)
    queue.start(large)
    assert modes(client) == [frames.WAIT]


def test_a_put_waits_for_its_answer_while_an_earlier_one_is_packed(
    client: Client, queue: RemoteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pack(carried: Any) -> Any:
        monkeypatch.undo()
        put(queue, "later")  # by another thread
        return pack_body(carried)

    monkeypatch.setattr("rlinf_async._channels.remote_queue.pack_body", pack)
    put(queue, "earlier")
    put(queue, "last")
    assert [(frame[5], frame[8]) for frame in client.sent] == [(3, frames.WAIT), (2, frames.SENT), (4, frames.SENT)]


def test_puts_after_a_close_wait_for_their_answers(client: Client, queue: RemoteQueue) -> None:
    queue.on_queue_frame("answer_puts", None)
    assert not put(queue, 1).done()
    assert modes(client) == [frames.WAIT]


def test_puts_with_a_bound_wait_here_beyond_the_window_until_others_are_answered(client: Client) -> None:
    queue = new_queue(client, max_bytes=32_000)
    puts = [put(queue, bytes(900)) for _ in range(4)]
    assert [frame[5] for frame in client.sent] == [1]
    puts[1].abandon(ClosedError("nobody wants it"))
    assert len(client.sent) == 1, "it had not left"
    queue.on_queue_frame("replies", [[1], [], 0])
    queue.on_queue_frame("failed", [2, "ClosedError", "closed"])
    assert [frame[5] for frame in client.sent] == [1, 2, 3]
    assert [request.done() for request in puts] == [True, True, True, False]


@pytest.mark.parametrize("end", ["given up", "taken back"])
def test_a_put_that_is_withdrawn_lets_the_next_one_leave(client: Client, end: str) -> None:
    queue = new_queue(client, max_bytes=100)
    first, _ = put(queue, 1), put(queue, 2)
    if end == "given up":
        first.abandon(ClosedError("nobody wants it"))
    else:
        first._timeout = 1.0
        queue.on_queue_frame("cancelled", [first.number])
    assert [frame[5] for frame in client.sent if frame[0] == frames.PUT] == [1, 2]


@pytest.mark.parametrize("how", ["fails", "is interrupted", "withdrawn"])
def test_a_put_that_does_not_leave_is_no_gap_among_the_numbers_and_keeps_nothing_of_the_window(
    client: Client, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It fails while it is packed, or another thread gives it up meanwhile."""
    queue = new_queue(client, max_bytes=100)
    first, second, third = (put(queue, number) for number in range(3))

    def pack(carried: Any) -> Any:
        if carried is not second.carried:
            return pack_body(carried)
        if how != "withdrawn":
            raise MemoryError("no room") if how == "fails" else KeyboardInterrupt
        second.abandon(ClosedError("nobody wants it"))
        return pack_body(carried)

    monkeypatch.setattr("rlinf_async._channels.remote_queue.pack_body", pack)
    queue.on_queue_frame("replies", [[first.number], [], 0])
    with pytest.raises((MemoryError, KeyboardInterrupt, ClosedError)):
        second.wait()
    assert ("skip", [second.number]) in [frame[5:] for frame in client.sent]
    assert [frame[5] for frame in client.sent if frame[0] == frames.PUT] == [first.number, third.number]
    queue.on_queue_frame("replies", [[third.number], [], 0])
    assert queue._window._used == 0


def test_an_interrupted_put_raises_and_is_no_gap(
    client: Client, queue: RemoteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlinf_async._channels.remote_queue.pack_body", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        put(queue, 1)
    assert client.sent[-1][5:] == ("skip", [2])


@pytest.mark.parametrize("target", [None, [1, frames.SOME]], ids=["one", "several"])
def test_an_item_whose_get_is_interrupted_goes_back(
    client: Client, monkeypatch: pytest.MonkeyPatch, target: Any
) -> None:
    queue = new_queue(client)
    get: Get[Any] = Get("get() from", "obs", "key", b"key", target, None)
    queue.start(get)
    queue.on_queue_frame("replies", [[], [[1, False, False, codec.encode_plain(1)]], 0])
    monkeypatch.setattr(codec, "decode", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        get.wait()
    assert [frame[5:] for frame in client.sent[1:]] == [("cancel", [1])]


def test_an_item_that_is_lost_on_its_way_goes_back(client: Client) -> None:
    queue = new_queue(client)
    get: Get[Any] = Get("get() from", "obs", "key", b"key", None, None)
    queue.start(get)
    queue.on_queue_frame("replies", [[], [[1, False, False, "this item was lost"]], 0])
    with pytest.raises(TransferFailed, match="this item was lost"):
        get.wait()
    assert client.sent[-1][5:] == ("cancel", [1])


def test_a_look_at_items_of_which_one_is_lost_fails(client: Client) -> None:
    queue = new_queue(client)
    query = QueueQuery("peek_all() of", "obs", "key", b"key", "peek", list)
    queue.start(query)
    queue.on_give([frames.GIVE, 0, 0, 7, 1, -1, True, 0, False, "this item was lost"], [])
    queue.on_give([frames.GIVE, 0, 0, 7, 1, -1, False, 0, False, codec.encode_plain(1)], [])
    queue.on_queue_frame("peeked", [1])
    with pytest.raises(TransferFailed, match="this item was lost"):
        query.wait()


def test_the_end_of_a_lease_reports_no_item_that_came_too_late(client: Client) -> None:
    queue = new_queue(client)
    lease: Get[Any] = Get("lease() of", "obs", "key", b"key", [1, frames.LEASE], None)
    queue.start(lease)
    queue.on_queue_frame("replies", [[], [[1, False, False, codec.encode_plain(1)]], 0])
    lease.wait()
    queue.on_queue_frame("lost", 1)
    queue.start(Confirmation(lease, 1))
    assert client.sent[-1][5:] == ("confirm", [1, 1, 1])


async def test_a_put_that_is_done_overtakes_no_request_that_waits_here(client: Client, queue: RemoteQueue) -> None:
    for _ in range(6):
        queue.start(Get("get() from", "obs", "key", b"key", None, None))
    assert queue._batching.gets
    small = put(queue, 1)
    large = put(queue, bytes(20_000))
    assert small.done() or small.pauses
    assert large.done()
    await asyncio.sleep(0)
    numbers: list[int] = []
    for frame in client.sent:
        numbers += [each[0] for each in (*frame[6][1], *frame[6][0])] if frame[5] == "requests" else [frame[5]]
    assert numbers == sorted(numbers)


def test_a_lease_whose_items_cannot_be_opened_is_given_back(client: Client) -> None:
    queue = new_queue(client)
    lease: Get[Any] = Get("lease() of", "obs", "key", b"key", [1, frames.LEASE], None)
    queue.start(lease)
    queue.on_queue_frame("replies", [[], [[1, False, False, b"nonsense"]], 0])
    with pytest.raises(SerializationError):
        lease.wait()
    assert client.sent[-1][5:] == ("cancel", [1])


@pytest.mark.parametrize("answer", ["taken back", "accepted", "none"])
def test_a_put_that_times_out_is_not_in_the_channel_or_says_that_nobody_knows(client: Client, answer: str) -> None:
    request = late_put(new_queue(client, max_bytes=100), client)
    queue = request.destination
    assert isinstance(queue, RemoteQueue)
    assert client.sent[-1][5:] == ("cancel", [1])
    assert not request.done()
    if answer == "accepted":
        queue.on_queue_frame("replies", [[1], [], 0])
        request.wait()
        return
    queue.on_queue_frame("cancelled", [1]) if answer == "taken back" else client.timers.pop()()
    with pytest.raises(DeadlineExceeded) as late:
        request.wait()
    assert ("may be in the channel" in str(late.value)) == (answer == "none")


def test_a_put_that_times_out_before_it_has_left_is_not_in_the_channel(client: Client) -> None:
    queue = new_queue(client, max_bytes=100)
    put(queue, 0)
    request = late_put(queue, client)
    with pytest.raises(DeadlineExceeded, match=r"within 0\.001 s$"):
        request.wait()
    assert len(client.sent) == 1


def late_put(queue: RemoteQueue, client: Client) -> Put:
    encoded = codec.encode(1)
    request = Put("obs", "key", b"key", 0, encoded, encoded.nbytes, frames.WAIT, 0.001)
    queue.start(request)
    time.sleep(0.002)
    request.done()
    return request


def test_items_that_came_too_late_are_an_error_of_the_next_operation_or_told(
    client: Client, queue: RemoteQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.on_queue_frame("lost", 1)
    queue.on_queue_frame("lost", 1)
    with pytest.raises(ClosedError, match="2 items that this process had put into channel 'obs'"):
        put(queue, 1).wait()
    assert not caplog.text
    queue.on_queue_frame("lost", 1)
    queue.end("")
    assert "1 item that this process had put into channel 'obs'" in caplog.text


def test_what_had_not_left_when_the_channel_ended_is_refused(client: Client, queue: RemoteQueue) -> None:
    client.is_full = True
    request = put(queue, 1)
    queue.end("")
    with pytest.raises(ClosedError):
        request.wait()


async def test_a_coroutine_that_never_has_to_wait_lets_others_run(queue: RemoteQueue) -> None:
    queue._window.size = 1 << 40
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
    queue._window.size = 1 << 40

    async def produce() -> None:
        for number in range(1000):
            await put(queue, number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(produce())
    together = [len(frame[6][0]) for frame in client.sent if frame[0] == frames.QUEUE and frame[5] == "requests"]
    assert len(modes(client)) + sum(together) == 8 * 1000
    assert max(together) == 8


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
    assert max(together) == 16  # so that the daemon has something to do while others follow


async def test_a_put_that_is_awaited_before_the_next_leaves_at_once(client: Client, queue: RemoteQueue) -> None:
    await put(queue, "the first of a turn lets others put too")
    for index in range(20):
        request = put(queue, index)
        assert request.done() or request.pauses
        await request
    assert sum(frame[0] == frames.PUT for frame in client.sent) >= 15


def test_puts_that_nobody_awaits_leave_at_once_where_no_loop_runs(client: Client, queue: RemoteQueue) -> None:
    assert all(put(queue, index).done() for index in range(20))
    assert modes(client) == [frames.SENT] * 20


async def test_large_ones_of_which_several_are_under_way_leave_together(client: Client, queue: RemoteQueue) -> None:
    queue._window.size = 1 << 40
    under_way = [put(queue, bytes(200_000)) for _ in range(4 + 4 + 3)]
    assert client.released[-1] == 4
    assert not under_way[-1].done()
    await asyncio.sleep(0)
    assert all(request.done() for request in under_way)
    assert client.released[-1] == 3
    pool.close()


async def test_what_another_thread_sends_meanwhile_leaves_nothing_behind(client: Client, queue: RemoteQueue) -> None:
    queue._window.size = 1 << 40
    client.before_held = queue._batching.leave  # in the middle of a put, as where another put is given up just then
    under_way = [put(queue, bytes(200_000)) for _ in range(7)]
    await asyncio.sleep(0)
    assert all(request.done() for request in under_way)
    pool.close()


@pytest.mark.parametrize("size", [1, 5_000, 200_000])
def test_what_is_held_by_a_loop_that_was_stopped_leaves_when_a_thread_waits_for_it(
    client: Client, queue: RemoteQueue, size: int
) -> None:
    queue._window.size = 1 << 40
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
    queue._window.size = 1 << 40
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


# -- what was taken ---------------------------------------------------------------------------------------------------


def taken_by(client: Client, frame: Any) -> list[Any]:
    """Return what a frame says of gets and of how many of their items this process has."""
    if frame[0] == frames.GET:
        return frame[8] or []
    return frame[6] if frame[5] == "taken" else frame[6][2]


def got(queue: RemoteQueue, number: int) -> Any:
    request: Get[Any] = Get("get() from", "obs", "key", b"key", None, None)
    queue.start(request)
    queue.on_queue_frame("replies", [[], [[number, False, False, codec.encode_plain(number)]], 0])
    return request.wait()


def page_of(client: Client) -> TakenPage:
    """Return what the client's daemon reads when the client has died."""
    page, fds = TakenPage.make()
    client.takings.page = TakenPage.of(fds)
    assert page is not None
    return page


def test_what_was_taken_stands_in_the_page_at_once_and_leaves_with_the_next_request(client: Client) -> None:
    queue, page = new_queue(client), page_of(client)
    assert got(queue, 1) == 1
    assert page.read() == {(0, 1): [(1, 1)]}
    assert got(queue, 2) == 2
    assert [taken_by(client, frame) for frame in client.sent] == [[], [(1, 1)]]
    assert len(client.timers) == 1
    client.timers.pop()()
    assert client.sent[2][5:] == ("taken", [(2, 1)])


def test_without_a_page_what_was_taken_leaves_before_the_caller_goes_on(client: Client) -> None:
    queue = new_queue(client)
    got(queue, 1)
    assert client.sent[1][5:] == ("taken", [(1, 1)])


def test_no_note_is_overwritten_before_its_word_has_left(client: Client) -> None:
    """Of another queue, to which nothing is said; a loop that never lets others have their turn keeps timers back."""
    page = page_of(client)
    queue, busy = (RemoteQueue(client, 0, number, "obs", 0) for number in (1, 2))  # type: ignore[arg-type]
    got(queue, 1)
    for number in range(1, 4 * NOTES):
        got(busy, number)
        said = any(frame[4] == 1 and taken_by(client, frame) for frame in client.sent)
        assert said or (1, 1) in page.read()[0, 1]
    assert said


def test_items_that_a_loop_has_are_said_before_the_rest_goes_back(client: Client) -> None:
    page_of(client)
    queue = new_queue(client)
    items = ChannelItems(lambda reader: begun(queue, reader), "obs")
    assert next(items) == 1
    assert next(items) == 2
    queue.on_queue_frame("shared", None)
    put(queue, 0)
    assert [frame[5:] for frame in client.sent[1:]][-3:-1] == [("taken", [(1, 1), (1, 2)]), ("cancel", [1])]


@pytest.mark.parametrize("end", ["confirmed", "gone", "before"])
def test_what_is_given_back_is_under_way_until_the_queue_says_so_or_ends(client: Client, end: str) -> None:
    queue = new_queue(client)
    items = ChannelItems(lambda reader: begun(queue, reader), "obs")
    assert next(items) == 1
    if end == "before":
        queue.end("")
    queue.on_queue_frame("shared", None)
    assert bool(client.giving_back.open) == (end != "before")
    if end == "confirmed":
        queue.on_queue_frame("cancelled", [1])
    elif end == "gone":
        queue.end("")
    assert not client.giving_back.open


def test_a_loop_that_is_left_gives_back_before_the_next_request_leaves(client: Client) -> None:
    """Though the thread that has handed its get over still refers to it."""
    page_of(client)
    queue, asked = new_queue(client), []

    def ask(reader: ChannelItems) -> Get[Any]:
        asked.append(begun(queue, reader))
        return asked[-1]

    items = ChannelItems(ask, "obs")
    assert next(items) == 1
    del items
    queue.start(Get("get() from", "obs", "key", b"key", None, None))
    assert [frame[5] for frame in client.sent if frame[5] != "taken"] == [1, "cancel", 2]


def test_a_loop_that_gives_way_asks_anew(client: Client) -> None:
    """Also where it has asked ahead: the queue may serve that before the items are back."""
    queue, asked = new_queue(client), list[Get[Any]]()

    def ask(reader: ChannelItems) -> Get[Any]:
        if not asked:
            asked.append(begun(queue, reader))
        else:
            asked.append(Get("get() from", "obs", "key", b"key", [9, frames.READ_SHARED], None, weakref.ref(reader)))
            queue.start(asked[-1])
        return asked[-1]

    items = ChannelItems(ask, "obs")
    assert [next(items) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert len(asked) == 2
    queue.on_queue_frame("shared", None)
    queue.on_queue_frame("replies", [[], [[2, False, False, codec.encode_plain(10)]], 0])
    due = items._due()
    assert due is not None
    items._arrived(due)
    assert items._take() == []
    assert items._due() is asked[2]
    words = [frame[5] for frame in client.sent if frame[5] != "taken"]
    assert words[:2] + sorted(set(words[2:-1])) + words[-1:] == [1, 2, "cancel", 3]
    assert {frame[6][0] for frame in client.sent if frame[5] == "cancel"} == {1, 2}


def begun(queue: RemoteQueue, reader: ChannelItems) -> Get[Any]:
    request: Get[Any] = Get("get() from", "obs", "key", b"key", [9, frames.READ_SHARED], None, weakref.ref(reader))
    queue.start(request)
    given = [[request.number, item < 9, False, codec.encode_plain(item)] for item in range(1, 10)]
    queue.on_queue_frame("replies", [[], given, 0])
    return request
