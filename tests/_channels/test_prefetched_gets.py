"""Prefetched gets: windows, hand-over to callers, recalls."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from rlinf_async._channels.remote_queue import RemoteQueue
from rlinf_async._channels.request import Get
from rlinf_async._channels.state import prefetch_window
from rlinf_async._core import frames
from rlinf_async.errors import ClosedError, EndOfChannel
from tests._support.hand_driven_channel import NUMBER, WINDOW, Daemon, K, L, Process, had, make_eager, settle


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """After two items four gets are sent ahead, however slow this machine is."""
    with pytest.MonkeyPatch.context() as patch:
        make_eager(patch)
        yield


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def consumer(daemon: Daemon) -> Process:
    """It has had 0, 1 and 2; 3, 4, 5, 6 have come ahead, and 7, 8, 9 have been put."""
    producer, consumer = Process(daemon), Process(daemon)
    for value in range(10):
        producer.put(value)
    settle(daemon)
    assert [had(daemon, consumer) for _ in range(3)] == [0, 1, 2]
    settle(daemon)
    assert len(consumer.windows.open[K].arrived) == WINDOW
    return consumer


# -- one after the other ----------------------------------------------------------------------------------------------


def test_an_item_that_is_there_needs_no_daemon(daemon: Daemon, consumer: Process) -> None:
    assert consumer.get().wait(0) == 3
    assert not consumer.up
    assert consumer.get().wait(0) == 4
    (frame,) = consumer.up
    assert frame[5] == "requests"
    puts, gets, taken = frame[6]
    assert (puts, len(gets), len(taken)) == ([], WINDOW // 2, 1)
    consumer.loop.turn()
    assert consumer.up[-1][5] == "taken"


def test_outside_a_coroutine_each_is_acknowledged_before_it_is_had(daemon: Daemon, consumer: Process) -> None:
    consumer.in_a_coroutine = False
    get = consumer.get()
    assert get.wait(0) == 3
    assert consumer.up.pop()[5:] == ["taken", [get.number]]


def test_what_this_process_asks_besides_has_everything_given_back_first(daemon: Daemon, consumer: Process) -> None:
    for ask, answer in (
        (lambda: consumer.ask("size"), (7, False)),
        (lambda: consumer.get(target=frames.NOW), 4),
        (lambda: consumer.get(target=0), [6]),
    ):
        request = ask()
        assert consumer.up[0][5] == "gave_back"
        settle(daemon)
        assert request.wait(0) == answer
        assert not consumer.windows.open
        consumer.windows._windows[K].streak = 2
        assert had(daemon, consumer) in (3, 5, 7)
        settle(daemon)
        assert consumer.windows.open


def test_what_is_there_is_had_with_what_was_ahead_and_nothing_is_left_behind(daemon: Daemon, consumer: Process) -> None:
    several = consumer.get(target=[2, frames.SOME])
    assert consumer.up[0][5] == "gave_back"
    settle(daemon)
    assert several.wait(0) == [3, 4]
    consumer.windows._windows[K].streak = 2
    assert had(daemon, consumer) == 5
    settle(daemon)
    assert consumer.windows.open
    everything = consumer.get(target=[1 << 60, frames.SOME])
    settle(daemon)
    assert everything.wait(0) == [6, 7, 8, 9]
    consumer.queue.flush()
    settle(daemon)
    assert daemon.queue.used == []
    nothing = consumer.get(target=[1 << 60, frames.SOME])
    settle(daemon)
    assert nothing.wait(0) == []
    assert not consumer.queue._batching.taken
    assert not consumer.windows.open


def test_what_is_there_is_also_what_lies_ahead_of_another(daemon: Daemon, consumer: Process) -> None:
    other = Process(daemon)
    everything = other.get(target=[1 << 60, frames.SOME])
    other.says()
    daemon.loop.turn()
    assert not everything.done()  # until it is known what callers of the consumer have
    assert consumer.get().wait(0) == 3
    settle(daemon)
    assert everything.wait(0) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("end", ["asked", "answered", "arrived", "forgotten", "empty", "killed"])
def test_what_is_had_at_once_and_not_wanted_any_more_goes_back_to_its_place(daemon: Daemon, end: str) -> None:
    producer, consumer, other = Process(daemon), Process(daemon), Process(daemon)
    if end != "empty":
        for value in range(3):
            producer.put(value)
        settle(daemon)
    get = consumer.get(target=[5, frames.SOME])
    if end == "answered":  # and the answer is on its way
        consumer.says()
        daemon.loop.turn()
    if end in ("asked", "answered"):
        get.give_up(ClosedError("not wanted any more"))
    settle(daemon)
    assert get.done()
    if end in ("arrived", "empty"):
        get._return()  # its task was cancelled before it resumed
    if end == "killed":
        daemon.gone.add(consumer.endpoint)
        daemon.channels.drop_client(consumer.endpoint)
    del get
    settle(daemon)
    expected = [] if end == "empty" else [0, 1, 2]
    again = other.get(target=[5, frames.SOME])
    settle(daemon)
    assert again.wait(0) == expected
    assert again.redelivered == (end not in ("asked", "empty"))
    other.queue.flush()
    settle(daemon)
    assert daemon.queue.used == []


def test_another_keys_business_is_its_own(daemon: Daemon, consumer: Process) -> None:
    consumer.ask("size", L)
    assert consumer.up.pop()[5] == "size"
    assert consumer.windows.open


def test_a_get_that_is_cancelled_gives_back_all_that_comes_after_it(daemon: Daemon, consumer: Process) -> None:
    get = consumer.get()
    assert get.done()
    get._return()  # its task was cancelled before it resumed
    assert [had(daemon, consumer) for _ in range(7)] == list(range(3, 10))
    settle(daemon)
    get = consumer.get()
    assert not get.done()
    get.give_up(ClosedError("nobody waits any more"))
    settle(daemon)
    assert daemon.queue.used == []


def test_of_several_gets_in_flight_one_that_is_cancelled_gives_back_its_own_item_and_all_that_are_ahead(
    daemon: Daemon, consumer: Process
) -> None:
    first, second, third = (consumer.get() for _ in range(3))
    second._return()
    settle(daemon)
    assert not consumer.windows.open
    assert [first.wait(0), third.wait(0)] == [3, 5]
    assert [had(daemon, consumer) for _ in range(5)] == [4, 6, 7, 8, 9]


def test_several_gets_in_flight_are_answered_in_order_and_keep_their_places_when_others_ask(daemon: Daemon) -> None:
    producer, consumer, other = Process(daemon), Process(daemon), Process(daemon)
    in_flight = deque(consumer.get() for _ in range(3))
    for value in range(10):
        producer.put(value)
        settle(daemon)
        assert in_flight.popleft().wait(0) == value
        in_flight.append(consumer.get())
        settle(daemon)
    assert len(consumer.windows.open[K].numbers) >= WINDOW // 2
    late = other.get()
    settle(daemon)
    assert not consumer.windows.open
    for value in range(10, 14):
        producer.put(value)
    settle(daemon)
    assert [get.wait(0) for get in (*in_flight, late)] == [10, 11, 12, 13]


def test_what_comes_for_a_get_that_was_over_before_its_queue_could_be_told_goes_back(daemon: Daemon) -> None:
    producer, consumer = Process(daemon), Process(daemon)
    get = consumer.get()
    get._settle(error=ClosedError("over, in another thread, while it was being started"))
    producer.put("anything")
    settle(daemon)
    assert had(daemon, producer) == "anything"


def test_a_get_stands_before_those_that_another_thread_sends_ahead_while_it_is_being_sent(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = Process(daemon), Process(daemon)
    producer.put("the only one")
    settle(daemon)
    ahead = consumer.queue._prefetched
    take = ahead.take

    def take_and_be_late(get: Get[Any]) -> bool:
        taken = take(get)
        ahead._send(K, WINDOW)
        return taken

    monkeypatch.setattr(ahead, "take", take_and_be_late)
    get = consumer.get(target=frames.NOW)
    settle(daemon)
    assert get.wait(0) == "the only one"


def test_a_get_for_what_is_there_now_is_not_batched(consumer: Process) -> None:
    """In a frame of its own the daemon sees that it has to read first what producers have said."""
    consumer.queue._batching._burst_until = float("inf")
    for target in frames.NOW, [3]:
        consumer.get(L, target)  # type: ignore[arg-type]
        assert consumer.up[-1][0] == frames.GET
    consumer.get(L)
    assert consumer.up[-1][0] == frames.GET
    assert len(consumer.queue._batching.gets) == 1


def test_a_get_that_everybody_forgets_does_so_too(daemon: Daemon, consumer: Process) -> None:
    consumer.get()
    settle(daemon)
    assert [had(daemon, consumer) for _ in range(3)] == [3, 4, 5]


@pytest.mark.parametrize("ask", ["get", "give_up"])
def test_what_another_thread_asks_while_all_is_being_given_back_is_said_after_that(
    consumer: Process, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    first = consumer.get()
    assert first.done()
    told = consumer.queue.tell
    others: list[threading.Thread] = []

    def tell(what: str, facts: Any, on_sent: Any = None) -> None:
        if what == "gave_back" and not others:
            others.append(threading.Thread(target=consumer.get if ask == "get" else first._return))
            others[0].start()
            others[0].join(0.1)  # it would be over by now, if it did not wait
        told(what, facts, on_sent)

    monkeypatch.setattr(consumer.queue, "tell", tell)
    consumer.queue.on_queue_frame("call_back", K)
    others[0].join()
    said = [frame[5] if frame[0] == frames.QUEUE else "get" for frame in consumer.up]
    assert said[-2:] == ["gave_back", "get" if ask == "get" else "cancel"]


@pytest.mark.parametrize("word", ["size", "peek"])
def test_what_is_queued_is_not_hidden_by_another_thread_that_was_about_to_send_ahead(
    daemon: Daemon, consumer: Process, word: str
) -> None:
    consumer.queue.on_queue_frame("call_back", K)
    settle(daemon)
    assert had(daemon, consumer) == 3
    get = consumer.get()
    settle(daemon)
    other = threading.Thread(target=get.wait, args=(0,))
    with consumer.windows.lock:
        other.start()
        other.join(0.1)
        assert other.is_alive()  # to send some it needs the lock
        question = consumer.ask(word)
    other.join()
    settle(daemon)
    found = question.wait(0)
    assert found == (5, False) if word == "size" else len(found) == 5


def test_a_put_that_is_given_up_is_withdrawn_whatever_is_ahead(daemon: Daemon, consumer: Process) -> None:
    put = consumer.put("unwanted")
    put._done = False  # as if there were no room for it yet
    put.give_up(ClosedError("not wanted"))
    assert consumer.up.pop()[5:] == ["cancel", [put.number]]
    assert consumer.windows.open


def test_who_stops_asking_gives_back_after_a_moment(
    daemon: Daemon, consumer: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer.loop.time_passes()
    assert consumer.windows.open
    monkeypatch.setattr(prefetch_window, "IDLE_S", -1.0)
    consumer.loop.time_passes()
    settle(daemon)
    assert not consumer.windows.open
    assert not consumer.loop.timers
    assert daemon.queue.size(K) == 7


def test_nobody_has_what_lay_there_while_its_process_was_stopped(
    daemon: Daemon, consumer: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Process(daemon)
    consumer.is_stopped = True
    get = other.get()
    settle(daemon)
    assert not get.done()
    daemon.loop.time_passes()
    settle(daemon)
    assert (get.wait(0), get.redelivered) == (3, True)
    with monkeypatch.context() as patch:
        patch.setattr(prefetch_window, "IDLE_S", -1.0)  # it goes on
        late = consumer.get()
    consumer.is_stopped = False
    settle(daemon)
    assert late.wait(0) == 4


def test_at_the_end_everything_is_had_and_then_there_is_nothing(daemon: Daemon, consumer: Process) -> None:
    daemon.close()
    assert [had(daemon, consumer) for _ in range(6)] == list(range(3, 9))
    assert len(consumer.windows.open[K].numbers) == 1  # of the others nothing will come
    assert had(daemon, consumer) == 9
    with pytest.raises(EndOfChannel):
        had(daemon, consumer)
    assert not consumer.windows.open


def test_with_the_channel_goes_what_nobody_has_had(daemon: Daemon, consumer: Process) -> None:
    consumer.queue.fail(ClosedError("gone"))
    with pytest.raises(ClosedError, match="gone"):
        consumer.get().wait(0)
    assert not consumer.windows.open


def test_a_bounded_queue_has_none(daemon: Daemon) -> None:
    for bounds in ((0, 1), (1 << 20, 0)):
        process = Process(daemon)
        process.queue = RemoteQueue(process, 0, NUMBER, "obs", *bounds)  # type: ignore[arg-type]
        for number in range(10):
            process.put(number)
            assert had(daemon, process) == number
        assert not process.windows.open


def test_a_caller_that_never_has_to_wait_lets_others_run(daemon: Daemon, consumer: Process) -> None:
    consumer.queue._prefetched._paused_at = 0.0
    waiting = consumer.get().__await__()
    assert next(waiting) is None
    with pytest.raises(StopIteration) as found:
        next(waiting)
    assert found.value.value == 3
    consumer.queue._prefetched._paused_at = 0.0
    waiting = consumer.get().__await__()
    next(waiting)
    with pytest.raises(asyncio.CancelledError):
        waiting.throw(asyncio.CancelledError())
    assert had(daemon, consumer) == 4
