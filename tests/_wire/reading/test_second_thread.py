"""Connections read by two threads: hand-over while the idle reader is busy."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlinf_async._core import frames
from rlinf_async._wire import unix
from rlinf_async._wire.reading import idle_reader
from rlinf_async._wire.reading.idle_reader import IdleReader, ReadArbiter
from rlinf_async._wire.reading.shared_selector import SharedSelector
from rlinf_async._wire.send_buffer import close_all
from rlinf_async._wire.unix import Connection


class Ends:
    """A connection that is read here and by another thread, its other end, and who has read what."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        selector, second = SharedSelector(), SharedSelector()
        self.loop, self.other = asyncio.SelectorEventLoop(selector), asyncio.SelectorEventLoop(second)
        self.reader = IdleReader(self.loop, selector, second)
        self.heard: list[tuple[int, int]] = []
        self.news = threading.Event()
        self.ended = threading.Event()
        self.connection = Connection(ours, self.other, on_frame=self._hear, on_closed=lambda reason: self.ended.set())
        self.connection.share(self.reader)
        self.packer = frames.new_packer()

    def _hear(self, frame: list[Any], fds: list[int]) -> None:
        close_all(fds)
        self.heard.append((frame[4], threading.get_ident()))
        self.news.set()

    def on_other(self, callback: Callable[[], object]) -> None:
        """Runs it on the other thread, to its end."""
        over = threading.Event()
        self.other.call_soon_threadsafe(lambda: (callback(), over.set()))
        assert over.wait(5)

    def say(self, number: int) -> None:
        self.theirs.send(self.packer.pack((frames.CANCEL, 0, 1, [], number)))


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    thread = threading.Thread(target=made.other.run_forever)
    thread.start()
    made.on_other(made.connection.open)
    yield made
    made.other.call_soon_threadsafe(lambda: (made.connection.close(), made.other.stop()))
    thread.join()
    made.reader.forget()
    made.loop.close()
    made.other.close()
    made.theirs.close()


def last_for(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    for module in idle_reader, unix:
        monkeypatch.setattr(module, "RECENT_POLL_S", seconds)


def test_the_other_loop_reads_again_only_once_it_has_run_what_was_handed_over_last() -> None:
    arbiter, loop = ReadArbiter(), asyncio.new_event_loop()
    arbiter.idle_loop = loop
    may_read: list[bool] = []
    arbiter.handled()
    arbiter.handled()  # wakes coroutines by calls that stand behind the one of the first time
    loop.call_soon(lambda: may_read.append(arbiter.may_read))
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert (may_read, arbiter.may_read) == ([False], True)


def test_who_has_just_looked_has_what_comes_before_it_looks_again(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    last_for(monkeypatch, 10)
    ends.reader.read_for(0)
    ends.say(1)
    assert not ends.news.wait(0.05)  # this thread is busy, and the other one lets it be
    ends.reader.read_for(5)
    assert ends.heard == [(1, threading.get_ident())]


def test_a_loop_that_has_not_run_what_came_before_leaves_the_next_to_the_other_thread(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    last_for(monkeypatch, 10)
    ends.reader.read_for(0)
    ends.say(1)
    assert not ends.news.wait(0.05)
    monkeypatch.setattr(ReadArbiter, "may_read", False)
    ends.connection._readable_elsewhere(in_loop=True)
    assert ends.news.wait(5)
    assert [number for number, thread in ends.heard if thread != threading.get_ident()] == [1]


def test_who_looks_no_more_has_the_other_thread_read(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    last_for(monkeypatch, 0.05)
    ends.reader.read_for(0)
    for number in range(3):
        ends.say(number)
        ends.news.clear()
    until = time.monotonic() + 5
    while len(ends.heard) < 3 and time.monotonic() < until:
        ends.news.wait(0.01)
    assert [number for number, _ in ends.heard] == [0, 1, 2]
    assert threading.get_ident() not in {thread for _, thread in ends.heard}


def test_the_thread_that_reads_reads_all_that_is_there(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    last_for(monkeypatch, 10)
    ends.reader.read_for(0)
    for number in range(3):  # a read ends with a descriptor
        socket.send_fds(ends.theirs, [ends.packer.pack((frames.CANCEL, 1, 1, [], number))], [ends.theirs.fileno()])
    ends.reader.read_for(5)
    assert ends.heard == [(number, threading.get_ident()) for number in range(3)]


def test_the_waiter_of_what_was_read_first_runs_first(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket thread reads 1 while this one is busy; this one's loop reads 2 before it has heard of 1."""
    arrived = {number: ends.loop.create_future() for number in (1, 2)}
    order: list[int] = []
    may_go_on = threading.Event()

    def wake(frame: list[Any], _: list[int]) -> None:
        number = frame[4]
        if threading.get_ident() == main:
            arrived[number].set_result(None)
        else:
            ends.loop.call_soon_threadsafe(arrived[number].set_result, None)
            ends.other.call_soon(may_go_on.wait, 5)  # and reads no more for now
            ends.news.set()

    async def wait_for(number: int) -> None:
        await arrived[number]
        order.append(number)
        if number == 1:
            may_go_on.set()

    async def both() -> None:
        waiting = [asyncio.ensure_future(wait_for(number)) for number in (1, 2)]
        await asyncio.sleep(0)
        ends.say(1)
        assert ends.news.wait(5)
        ends.say(2)
        await asyncio.wait(waiting, timeout=5)

    last_for(monkeypatch, 0)
    main = threading.get_ident()
    monkeypatch.setattr(ends.connection.reader, "_on_frame", wake)
    ends.loop.run_until_complete(both())
    may_go_on.set()
    assert order == [1, 2]


def test_an_end_of_file_is_heard_while_nobody_looks(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    last_for(monkeypatch, 0.02)
    ends.reader.read_for(0)
    ends.say(1)
    ends.theirs.close()
    assert ends.ended.wait(5)
    assert [number for number, _ in ends.heard] == [1]


def test_a_connection_that_is_closed_meanwhile_is_not_looked_at_again(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    last_for(monkeypatch, 0.02)
    ends.reader.read_for(0)
    ends.say(1)
    closed = threading.Event()
    ends.other.call_soon_threadsafe(lambda: (ends.connection.close(), closed.set()))
    assert closed.wait(5)
    assert not ends.news.wait(0.05)


def test_a_socket_is_closed_while_the_other_thread_is_busy(ends: Ends) -> None:
    ends.theirs.close()
    assert ends.ended.wait(5)
    assert ends.connection.fileno() == -1  # and this thread's loop has not run
    assert ends.reader.gate().wait(0) is False


def test_a_thread_that_has_read_the_end_stops_reading(ends: Ends) -> None:
    busy, may_go_on = threading.Event(), threading.Event()
    ends.other.call_soon_threadsafe(lambda: (busy.set(), may_go_on.wait(5)))
    assert busy.wait(5)
    ends.theirs.close()
    ends.reader.read_for(5)
    read_on = dict(ends.reader._readers)
    may_go_on.set()
    assert ends.ended.wait(5)
    assert read_on == {}


def test_a_successor_that_takes_the_number_of_a_closed_socket_is_read_by_both_threads(
    ends: Ends,
) -> None:
    number = ends.connection.fileno()
    left, (ours, ends.theirs) = ends.theirs, socket.socketpair()
    os.dup2(ours.fileno(), number)
    ours.close()
    successor = Connection(socket.socket(fileno=number), ends.other, on_frame=ends._hear, on_closed=print)
    ends.connection.send((frames.CANCEL, 0, 1, [], 3))
    assert ends.ended.wait(5)
    successor.share(ends.reader)
    ends.on_other(successor.open)
    left.close()
    ends.theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        ends.theirs.recv(1)
    ends.say(1)
    assert ends.news.wait(5)
    ends.on_other(lambda: ends.other.remove_reader(number))
    ends.say(2)
    ends.reader.read_for(5)
    assert [number for number, _ in ends.heard] == [1, 2]
    ends.on_other(successor.close)


def test_a_socket_that_is_left_to_the_other_thread_for_a_moment_is_not_watched_under_a_number_that_has_become_anothers(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    last_for(monkeypatch, 0.2)
    ends.reader.read_for(0)
    ends.say(1)  # the other thread leaves it to this one
    ends.on_other(lambda: None)
    number = ends.connection.fileno()
    near, far = socket.socketpair()
    os.dup2(near.fileno(), number)  # a file of the user's
    far.send(b"not for it")
    assert ends.ended.wait(5)
    near.settimeout(5)
    assert near.recv(100) == b"not for it"
    near.close()
    far.close()
    ends.on_other(lambda: None)
    os.close(number)
    assert not [number for number, _ in ends.heard if number != 1]
