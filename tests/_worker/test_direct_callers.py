"""Direct sockets of a worker to its callers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlinf_async._core import frames
from rlinf_async._core.giving_back import GivingBack
from rlinf_async._wire.unix import Connection
from rlinf_async._worker.direct_callers import DirectCallers
from rlinf_async._worker.running_call import Call

CALLER = frames.endpoint(0, 3)


class Client:
    """Keeps the caller's end of what ``DirectCallers`` hands out, and looks what is known at that moment."""

    node = 0
    direct_sockets = None
    endpoint = frames.endpoint(0, 9)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.theirs: Connection | None = None
        self.on_send: Callable[[], None] = lambda: None

    def send(self, frame: Any, fds: Any = ()) -> None:
        assert frame[0] == frames.DIRECT
        assert frame[3] == CALLER
        self.theirs = Connection(
            socket.socket(fileno=fds[0]), self.loop, on_frame=lambda *_: None, on_closed=lambda _: None
        )
        self.theirs.open()
        self.on_send()

    def connect_directly(self, sock: socket.socket, **callbacks: Any) -> Connection:
        way = Connection(sock, self.loop, **callbacks)
        way.open()
        return way


class Inbox:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_direct(self, source: int, way: Connection, frame: list[Any], fds: list[int]) -> None:
        self.heard.append((source, frame[4]))

    def on_batch(self) -> None: ...

    def on_caller_gone(self, source: int, way: Connection) -> None: ...


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """It never turns: nothing is read but what is asked for."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def call(number: int) -> frames.Frame:
    return (frames.CALL, 0, 0, 0, number, "note", 0, b"")


def test_the_very_first_direct_call_is_heard_before_what_the_daemon_relays(loop: asyncio.AbstractEventLoop) -> None:
    client, inbox = Client(loop), Inbox()
    direct_callers = DirectCallers(client, granted=True, inbox=inbox)  # type: ignore[arg-type]
    way = direct_callers.to(CALLER)
    assert way is not None
    assert client.theirs is not None
    for number in range(3):
        client.theirs.send(call(number))
    assert not client.theirs.is_behind()
    direct_callers.read_available(CALLER)
    assert inbox.heard == [(CALLER, 0), (CALLER, 1), (CALLER, 2)]
    client.theirs.close()
    way.close()


def test_a_caller_is_heard_out_from_the_moment_that_it_may_call_directly(loop: asyncio.AbstractEventLoop) -> None:
    client, inbox = Client(loop), Inbox()
    direct_callers = DirectCallers(client, granted=True, inbox=inbox)  # type: ignore[arg-type]

    def call_at_once() -> None:
        assert client.theirs is not None
        client.theirs.send(call(7))
        assert not client.theirs.is_behind()
        direct_callers.read_available(CALLER)

    client.on_send = call_at_once
    way = direct_callers.to(CALLER)
    assert inbox.heard == [(CALLER, 7)]
    assert way is not None
    assert client.theirs is not None
    client.theirs.close()
    way.close()


def test_without_leave_of_the_daemon_answers_go_by_way_of_it(loop: asyncio.AbstractEventLoop) -> None:
    direct_callers = DirectCallers(Client(loop), granted=False, inbox=Inbox())  # type: ignore[arg-type]
    assert direct_callers.to(CALLER) is None
    direct_callers.read_all_available()


class Way:
    """A connection that takes long to write out; meanwhile another caller comes."""

    def __init__(self, connections: dict[int, Any], seconds: float) -> None:
        self._connections, self._seconds = connections, seconds
        self.given: list[float] = []

    def flush_blocking(self, seconds: float) -> None:
        self.given.append(seconds)
        self._connections[len(self._connections) + 100] = None
        time.sleep(min(seconds, self._seconds))


def test_at_the_end_all_callers_together_have_the_time_and_one_that_comes_meanwhile_stops_none(
    loop: asyncio.AbstractEventLoop,
) -> None:
    client: Any = Client(loop)
    client.giving_back = GivingBack()
    callers = DirectCallers(client, True, Inbox())
    ways = [Way(callers._connections, 0.2) for _ in range(3)]
    callers._connections.update(enumerate(ways))  # type: ignore[arg-type]
    callers.flush_blocking(0.3)
    assert [len(way.given) for way in ways] == [1, 1, 1]
    assert ways[0].given[0] > 0.2 > ways[1].given[0]
    assert ways[2].given == [0.0]


class Connected:
    """A socket to a caller that counts how often it is asked, which writes what it has."""

    def __init__(self, is_full: bool) -> None:
        self.is_full, self.asked = is_full, 0

    def is_behind(self) -> bool:
        self.asked += 1
        return self.is_full


def test_no_answer_is_written_by_itself_for_the_sake_of_the_report(loop: asyncio.AbstractEventLoop) -> None:
    reports: list[Callable[[], None]] = []
    sent: list[Any] = []
    client: Any = Client(loop)
    client.later = lambda seconds, callback: reports.append(callback)
    client.send = sent.append
    direct_callers = DirectCallers(client, granted=True, inbox=Inbox())
    free: Any = Connected(is_full=False)
    full: Any = Connected(is_full=True)
    for number in range(3):
        direct_callers.answered(Call(CALLER, 0, number, "note", 0, free, 0.0))
        direct_callers.answered(Call(CALLER + 1, 0, number, "note", 0, full, 0.0))
    direct_callers.answered(Call(CALLER + 2, 0, 0, "note", 0, full, None))
    assert not free.asked
    for report in reports:
        report()
    assert (len(reports), free.asked, full.asked) == (1, 1, 1)
    assert sent == [(frames.SETTLED, 0, client.endpoint, [CALLER, 0, CALLER, 1, CALLER, 2, CALLER + 2, 0])]


def test_a_worker_has_no_socket_to_itself(loop: asyncio.AbstractEventLoop) -> None:
    client: Any = Client(loop)
    assert DirectCallers(client, True, Inbox()).to(client.endpoint) is None
