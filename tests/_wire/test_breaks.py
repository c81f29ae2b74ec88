"""Broken connections with frames in flight: no loss, reordering, or descriptor leak."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable

import pytest

from rlinf_async import settings
from rlinf_async._core import frames
from rlinf_async._core.resend import ACK_FRAMES
from rlinf_async._core.segment import write_segment
from rlinf_async._wire.direct_sockets import DirectSockets
from rlinf_async._wire.reading.idle_reader import ReadArbiter
from rlinf_async._wire.unix import Connection

EXPECTED = 0.05


def message(number: int, count: int = 0) -> bytes:
    return frames.pack((frames.MESSAGE, count, 7, 0, number, 8 if count else b""))


async def until(holds: object) -> None:
    async with asyncio.timeout(10):
        while not holds():  # type: ignore[operator]
            await asyncio.sleep(0.001)


async def test_frames_before_a_break_come_in_order_although_the_answer_to_one_of_them_finds_the_socket_broken() -> None:
    """One read ends with ACK and a descriptor; what is to be sent again for that ACK cannot be written any more."""
    near, far = socket.socketpair()
    heard: list[int] = []
    ended: list[int] = []

    def on_frame(frame: list[object], fds: list[int]) -> None:
        heard.append(frame[4])  # type: ignore[arg-type]
        for fd in fds:
            os.close(fd)

    def on_closed(_: str) -> None:
        ended.append(connection.received)

    connection = Connection(near, asyncio.get_running_loop(), on_frame=on_frame, on_closed=on_closed, resumable=True)
    connection.open()
    connection.send((frames.MESSAGE, 1, 7, 0, 0, 8), [write_segment([bytes(8)], 8)])  # what the other side lacks
    content = write_segment([bytes(8)], 8)
    lost = frames.pack((frames.ACK, 0, 0, frames.LOST))
    socket.send_fds(far, [message(1) + lost + message(2, 1)], [content])
    far.sendall(message(3))
    far.close()
    os.close(content)
    await until(lambda: ended)
    assert heard == [1, 2, 3]
    assert ended == [3]
    connection.close()


async def test_the_late_end_of_a_socket_that_has_been_resumed_is_told_to_nobody() -> None:
    """While one thread resumes a socket, the loop's is about to tell of its end: by then there may be a successor."""
    near, far = socket.socketpair()
    arbiter, told = ReadArbiter(), []
    connection = Connection(
        near, asyncio.get_running_loop(), on_frame=print, on_closed=told.append, arbiter=arbiter, resumable=True
    )
    connection.open()
    resuming, may_end = threading.Event(), threading.Event()

    def resume() -> None:
        with arbiter.lock:
            resuming.set()
            may_end.wait(10)
            connection.end()

    thread = threading.Thread(target=resume)
    thread.start()
    resuming.wait(10)
    threading.Timer(EXPECTED, may_end.set).start()
    connection._fail("late")
    thread.join()
    assert told == []
    far.close()
    connection.close()


async def test_a_sender_is_told_although_its_receiver_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.DIRECT_ACK_S.variable, str(EXPECTED))
    loop = asyncio.get_running_loop()
    heard: list[int] = []
    left, right = socket.socketpair()
    sender = Connection(left, loop, on_frame=print, on_closed=print)
    receiver = Connection(right, loop, on_frame=lambda frame, _: heard.append(frame[4]), on_closed=print)
    sender.open()
    receiver.open()
    for number in range(3 * ACK_FRAMES):
        sender.send((frames.MESSAGE, 0, 7, 0, number, b""))
    await until(lambda: len(heard) == 3 * ACK_FRAMES and len(sender._writer.buffer.kept) < 2 * ACK_FRAMES)
    sender.close()
    receiver.close()


async def test_frames_of_one_socket_are_acknowledged_on_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.DIRECT_ACK_S.variable, "60")
    loop = asyncio.get_running_loop()
    heard: list[int] = []

    def on_frame(frame: list[object], _: object) -> None:
        heard.append(frame[4])  # type: ignore[arg-type]

    sockets = *socket.socketpair(), *socket.socketpair()
    ends = [Connection(each, loop, on_frame=on_frame, on_closed=print, resumable=True) for each in sockets]
    sender, receiver, answered, answering = ends
    sender.link(answered)
    receiver.link(answering)
    for end in ends:
        end.open()
    for number in range(ACK_FRAMES):
        sender.send((frames.MESSAGE, 0, 7, 0, number, b""))
    await until(lambda: len(heard) == ACK_FRAMES)
    answering.send((frames.MESSAGE, 0, 7, 0, ACK_FRAMES, b""))
    await until(lambda: len(heard) > ACK_FRAMES)
    kept = len(sender._writer.buffer.kept)
    for end in ends:
        end.close()
    assert kept == 0


async def test_a_broken_socket_is_behind_from_the_write_on_that_fails() -> None:
    """Its end is handled later; a frame that another way takes meanwhile would overtake those that this one keeps."""
    near, far = socket.socketpair()
    connection = Connection(near, asyncio.get_running_loop(), on_frame=print, on_closed=print, resumable=True)
    connection.open()
    far.close()
    connection.send((frames.MESSAGE, 0, 7, 0, 0, b""))
    assert not connection.is_closed
    assert connection.is_behind()
    connection.close()


class Socket:
    """As much of a connection as a table of them looks at."""

    received = 0
    is_closed = False

    def __init__(self) -> None:
        self.sibling: Socket | None = None

    def link(self, sibling: Socket) -> None:
        self.sibling, sibling.sibling = sibling, self

    def drain_if_intact(self) -> None: ...

    def end(self) -> None:
        self.sibling = None

    def hand_over(self, received: int, relay: object) -> None: ...

    def close(self) -> None: ...


def test_after_a_socket_that_never_arrived_both_sides_link_the_next_ones_or_neither_does() -> None:
    """A side that takes them for linked says on one what has come on the other; the other side would not hear it."""

    def table(send_resume: Callable[[int, int], None] = lambda peer, received: None) -> DirectSockets:
        return DirectSockets(send_resume, lambda *frame: None, lambda *end: None)

    made_here, given_here, made_there = (table() for _ in range(3))
    given_there = table(lambda peer, received: made_here.resume(2, received))
    made_here.add(2, Socket(), given_here)  # type: ignore[arg-type]
    made_here.broke(2)
    given_there.resume(1, 0)
    here, there = Socket(), Socket()
    made_here.add(2, here, given_here)  # type: ignore[arg-type]
    given_there.add(1, there, made_there)  # type: ignore[arg-type]
    made_there.add(1, Socket(), given_there)  # type: ignore[arg-type]
    given_here.add(2, Socket(), made_here)  # type: ignore[arg-type]
    assert (here.sibling is None) == (there.sibling is None)


def test_nothing_is_kept_of_a_process_that_has_ended() -> None:
    sockets = DirectSockets(lambda *resume: None, lambda *frame: None, lambda *end: None)
    for received in (4, -1):
        sockets.add(2, Socket(), None)  # type: ignore[arg-type]
        sockets.broke(2)
        sockets.resume(2, received)
    assert not any((sockets.connections, sockets._broken, sockets._replaced, sockets._lost))
