"""Frames and descriptors over a socket pair."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import Any

import pytest

from rlinf_async._core import frames
from rlinf_async._wire import socket_writer
from rlinf_async._wire.socket_writer import MAX_FRAME_BYTES
from rlinf_async._wire.unix import Connection


class End:
    """One side of a conversation and what it heard."""

    def __init__(self, sock: socket.socket) -> None:
        self.frames: list[tuple[list[Any], list[int]]] = []
        self.closed: list[str] = []
        self.batches = 0
        self.sock = sock
        self.news = asyncio.Event()
        self.connection = Connection(
            sock, asyncio.get_running_loop(), on_frame=self._heard, on_closed=self._closed, on_batch=self._batch
        )
        self.connection.open()

    def _heard(self, frame: list[Any], fds: list[int]) -> None:
        self.frames.append((frame, fds))
        self.news.set()

    def _closed(self, reason: str) -> None:
        self.closed.append(reason)
        self.news.set()

    def _batch(self) -> None:
        self.batches += 1

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.frames) < count and not self.closed:
                self.news.clear()
                await self.news.wait()


@pytest.fixture
async def ends() -> Any:
    left, right = socket.socketpair()
    a, b = End(left), End(right)
    yield a, b
    a.connection.close()
    b.connection.close()


def signal_frame(number: int, fds: int = 0) -> tuple[Any, ...]:
    return (frames.CANCEL, fds, 1, [], number)


async def test_frames_arrive_in_order_in_few_batches(ends: tuple[End, End]) -> None:
    a, b = ends
    for number in range(2000):
        a.connection.send(signal_frame(number))
    await b.until(2000)
    assert [frame[4] for frame, _ in b.frames] == list(range(2000))
    assert b.batches < 20


async def test_descriptors_arrive_with_their_own_frame(ends: tuple[End, End]) -> None:
    a, b = ends
    for number in range(60):
        if number % 3:
            a.connection.send(signal_frame(number))
        else:
            read, write = os.pipe()
            os.write(write, str(number).encode())
            os.close(write)
            a.connection.send(signal_frame(number, 1), (read,))
    await b.until(60)
    for frame, fds in b.frames:
        assert len(fds) == (frame[4] % 3 == 0)
        for fd in fds:
            assert os.read(fd, 10) == str(frame[4]).encode()
            assert not os.get_inheritable(fd)
            os.close(fd)


async def test_other_threads_may_send(ends: tuple[End, End]) -> None:
    a, b = ends

    def send(base: int) -> None:
        for number in range(500):
            a.connection.send(signal_frame(base + number), later=number % 2 == 0)

    threads = [threading.Thread(target=send, args=(base,)) for base in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    await b.until(1500)
    for thread in threads:
        thread.join()
    got = [frame[4] for frame, _ in b.frames]
    for base in (0, 1000, 2000):
        assert [number for number in got if base <= number < base + 1000] == list(range(base, base + 500))


async def test_the_other_ends_close_is_told_once_after_its_last_frame(ends: tuple[End, End]) -> None:
    a, b = ends
    a.connection.send(signal_frame(1))
    await b.until(1)
    a.connection.close()
    async with asyncio.timeout(5):
        while not b.closed:
            b.news.clear()
            await b.news.wait()
    assert b.closed == ["end of file"]
    assert [frame[4] for frame, _ in b.frames] == [1]


async def test_a_connection_whose_number_another_one_has_taken_hears_of_its_end(ends: tuple[End, End]) -> None:
    (left, _), (near, far) = ends, socket.socketpair()
    number = left.sock.fileno()
    os.dup2(near.fileno(), number)  # user code has closed it, and the kernel has given its number away
    near.close()
    successor = Connection(socket.socket(fileno=number), asyncio.get_running_loop(), on_frame=print, on_closed=print)
    await left.until(1)
    assert left.closed == ["nothing can be written to it"]
    successor.close()
    far.close()


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"\xc1garbage", "not a frame"),
        (frames.pack((frames.ACK, 0, "seven", 0)), "'str'"),
        (frames.pack((frames.PIECE, 0, b"1")) + frames.pack((frames.DIRECT, 1, 0, "target")), "string argument"),
    ],
    ids=["no frame", "no count", "no size"],
)
async def test_garbage_closes_the_connection_with_a_reason(garbage: bytes, reason: str) -> None:
    left, right = socket.socketpair()
    b = End(right)
    left.send(garbage)
    await b.until(1)
    assert reason in b.closed[0]
    left.close()


async def test_descriptors_that_were_not_sent_are_closed() -> None:
    left, right = socket.socketpair()
    a = End(left)
    a.connection.close()
    read, write = os.pipe()
    a.connection.send(signal_frame(0, 1), (read,))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)
    os.close(write)
    right.close()


async def test_a_handler_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    left, right = socket.socketpair()
    got: list[int] = []

    def heard(frame: list[Any], fds: list[int]) -> None:
        if frame[4] == 0:
            raise RuntimeError("handler")
        got.append(frame[4])

    connection = Connection(right, asyncio.get_running_loop(), on_frame=heard, on_closed=print)
    connection.open()
    left.send(b"".join(frames.pack(signal_frame(number)) for number in range(3)))
    async with asyncio.timeout(5):
        while len(got) < 2:
            await asyncio.sleep(0)
    assert got == [1, 2]
    assert "could not be handled" in caplog.text
    connection.close()
    left.close()


async def test_a_frame_that_the_reader_would_refuse_is_refused_here_and_its_descriptors_closed(ends: Any) -> None:
    a, b = ends
    large = (frames.EVENT, 1, 1, 2, "what", bytes(MAX_FRAME_BYTES))
    for send in (lambda fd: a.connection.send(large, [fd]), lambda fd: a.connection.send_all([(large, [fd])])):
        fd = os.open("/dev/null", os.O_RDONLY)
        with pytest.raises(ValueError, match=r"a frame of kind 7 takes 8388\d+ bytes, more than 8388608"):
            send(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    a.connection.send(signal_frame(1))
    await b.until(1)
    assert not b.closed


async def test_what_has_not_left_is_counted_and_the_end_of_a_jam_told(ends: Any) -> None:
    a, b = ends
    drained = asyncio.Event()
    a.connection.on_drained = drained.set
    for number in range(64):
        a.connection.send((frames.EVENT, 0, 1, 2, "what", bytes(100_000) + bytes([number])))
    a.connection._writer.flush()
    assert 64 * 100_000 > a.connection.queued_bytes > 4 << 20
    await b.until(64)
    async with asyncio.timeout(10):
        await drained.wait()
    assert a.connection.queued_bytes == 0


async def test_it_is_said_when_the_kernel_has_a_frame_and_not_before(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_writer, "_BURST_S", 0.0)  # what follows closely does not wait for the end of the turn
    a, b = ends
    left: list[int] = []
    a.connection.send(signal_frame(0), on_sent=lambda: left.append(0))
    assert left == [0]
    large = bytes(100_000)
    for number in range(1, 21):  # far more than the socket holds
        a.connection.send(
            (frames.REPLY, 0, 1, 2, 3, number, 0, large), on_sent=lambda number=number: left.append(number)
        )
    assert 0 < (len(left) - 1) * len(large) <= a.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    await b.until(21)
    assert left == list(range(21))


async def test_what_had_been_said_is_read_at_once_and_no_more_is_waited_for(ends: tuple[End, End]) -> None:
    a, b = ends
    for number in range(5):
        pipe = os.pipe()
        a.connection.send_all([(signal_frame(number, 2), pipe)])
    b.connection.read_available()
    assert [frame[4] for frame, _ in b.frames] == list(range(5))
    b.connection.read_available()
    assert len(b.frames) == 5
    for _, fds in b.frames:
        for fd in fds:
            os.close(fd)


async def test_what_is_held_leaves_with_the_next(ends: tuple[End, End]) -> None:
    a, b = ends
    left: list[int] = []
    for number in range(3):
        a.connection.send(signal_frame(number), hold=True, on_sent=lambda number=number: left.append(number))
    assert a.connection.queued_bytes
    assert not left
    a.connection.send(signal_frame(3))
    assert left == [0, 1, 2]
    await b.until(4)
    assert [frame[4] for frame, _ in b.frames] == [0, 1, 2, 3]
