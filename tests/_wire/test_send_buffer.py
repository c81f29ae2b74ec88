"""Send buffer: partial writes, descriptors, retransmission."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf_async._core import frames
from rlinf_async._core.frames import FrameReader, pack
from rlinf_async._core.resend import Incoming
from rlinf_async._wire.send_buffer import MAX_FDS_PER_CALL, SendBuffer, WriteState, close_all


class Moody(socket.socket):
    """A socket that fails for a while, with a real one behind it."""

    moods: list[int]

    def _complain(self) -> None:
        if self.moods:
            raise OSError(self.moods.pop(0), "as it was told")

    def send(self, *args: object) -> int:  # type: ignore[override]
        self._complain()
        return super().send(*args)  # type: ignore[arg-type]

    def sendmsg(self, *args: object) -> int:  # type: ignore[override]
        self._complain()
        return super().sendmsg(*args)  # type: ignore[arg-type]


@pytest.fixture
def ends() -> Iterator[tuple[Moody, socket.socket]]:
    left, right = socket.socketpair()
    left.setblocking(False)
    with Moody(fileno=left.detach()) as moody, right:
        moody.moods = []
        moody.setblocking(False)
        yield moody, right


def test_what_is_small_leaves_together_and_its_senders_are_told(ends: tuple[Moody, socket.socket]) -> None:
    buffer, told = SendBuffer(), []
    buffer.add_plain(bytes(10))
    buffer.add_control(bytes(10))
    for number in range(3):
        buffer.add(bytes([number]) * 10, (), on_sent=lambda number=number: told.append(number))
    assert buffer.nbytes == 50
    assert buffer.take_callbacks() == []
    assert buffer.write_to(ends[0]) is WriteState.EMPTY
    for tell in buffer.take_callbacks():
        tell()
    assert told == [0, 1, 2]
    assert (len(buffer), buffer.nbytes) == (0, 0)
    assert len(ends[1].recv(100)) == 50


def test_one_write_has_a_quarter_of_a_mebibyte_and_the_last_frame(
    ends: tuple[Moody, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, sizes = SendBuffer(), []
    for _ in range(9):
        buffer.add_plain(bytes(100 << 10))

    def send(self: Moody, data: bytes, flags: int) -> int:
        sizes.append(len(data) >> 10)
        return len(data)

    monkeypatch.setattr(Moody, "send", send)
    assert buffer.write_to(ends[0]) is WriteState.EMPTY
    assert sizes == [300, 300, 300]


def test_a_full_socket_keeps_the_rest_for_later(ends: tuple[Moody, socket.socket]) -> None:
    buffer = SendBuffer()
    buffer.add(bytes(8 << 20), (), on_sent=lambda: None)
    assert buffer.write_to(ends[0]) is WriteState.FULL
    assert 0 < buffer.nbytes < 8 << 20
    assert buffer.take_callbacks() == []
    received = 0
    while buffer.write_to(ends[0]) is WriteState.FULL:
        received += len(ends[1].recv(1 << 20))
    assert len(buffer.take_callbacks()) == 1
    while received < 8 << 20:
        received += len(ends[1].recv(1 << 20))


@pytest.mark.parametrize("mood", [errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM])
def test_a_kernel_that_is_short_of_something_loses_no_frame(ends: tuple[Moody, socket.socket], mood: int) -> None:
    buffer = SendBuffer()
    ends[0].moods = [mood] * 2
    reading, writing = os.pipe()
    buffer.add(b"with", [reading])
    buffer.add(b" company", ())
    assert [buffer.write_to(ends[0]) for _ in range(3)] == [WriteState.SHORT, WriteState.SHORT, WriteState.EMPTY]
    data, fds, _, _ = socket.recv_fds(ends[1], 100, MAX_FDS_PER_CALL)
    assert data == b"with company"
    assert len(fds) == 1
    buffer.drop()
    for fd in (*fds, writing):
        os.close(fd)


def test_what_is_sent_again_takes_no_descriptor_of_what_is_skipped(ends: tuple[Moody, socket.socket]) -> None:
    buffer, incoming, reader, found = SendBuffer(), Incoming(), FrameReader(), []

    def send(number: int) -> None:
        file = os.memfd_create("content")
        os.write(file, bytes([number]))
        buffer.add(pack((frames.MESSAGE, 1, number, 0, [], 1)), [file], 1)

    def receive(starved: bool) -> None:
        ends[1].setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                data, fds, _, _ = socket.recv_fds(ends[1], 1 << 16, 16)
                if starved:
                    close_all(fds)
                if fds:
                    incoming.add_fds([] if starved else fds, truncated=starved)
                for frame, files in filter(None, map(incoming.take, reader.feed(memoryview(data)))):
                    found.append((frame[2], os.pread(files[0], 1, 0) if files else bytes(frame[-1])))
                    close_all(files)
                incoming.end_read()

    send(1)
    buffer.write_to(ends[0])
    receive(starved=True)
    send(2)
    buffer.restart(0)
    send(3)
    buffer.write_to(ends[0])
    receive(starved=False)
    assert found == [(number, bytes([number])) for number in (1, 2, 3)]
    buffer.drop()


def test_what_never_leaves_is_closed_and_nobody_told(ends: tuple[Moody, socket.socket]) -> None:
    buffer = SendBuffer()
    reading, writing = os.pipe()
    buffer.add(b"never", [reading], on_sent=lambda: None)
    ends[1].close()
    assert buffer.write_to(ends[0]) is WriteState.GONE
    buffer.drop()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reading)
    assert buffer.take_callbacks() == ()
    assert (len(buffer), buffer.nbytes) == (0, 0)
    os.close(writing)


CROWDED = """
import asyncio, os, resource, socket
from rlinf_async._core import frames
from rlinf_async._wire.unix import Connection

COUNT = 150

async def main():
    loop = asyncio.get_running_loop()
    heard = []
    done, drained = asyncio.Event(), asyncio.Event()
    left, right = socket.socketpair()
    sending = Connection(left, loop, on_frame=print, on_closed=print)
    sending.on_drained = drained.set
    sending.open()

    def on_frame(frame, fds):
        heard.append((frame[4], len(fds)))
        for fd in fds:
            os.close(fd)
        if len(heard) == COUNT:
            done.set()

    receiving = Connection(right, loop, on_frame=on_frame, on_closed=print)
    memory = os.memfd_create("one")
    crowded = 0
    for number in range(COUNT):
        fds = [os.dup(memory) for _ in range(4)]  # which are kept open until they have arrived
        if not crowded:  # later it would be the receiver's shortage, which has these come as bytes
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 900))
        sending.send((frames.CANCEL, len(fds), 0, 0, number), fds)
        await asyncio.sleep(0)  # it may leave only now, with those before it
        resource.setrlimit(resource.RLIMIT_NOFILE, (900, 900))
        if sending.queued_bytes:
            if not crowded:
                receiving.open()
            crowded += 1
            await drained.wait()
            drained.clear()
    await done.wait()
    assert heard == [(number, 4) for number in range(COUNT)], heard
    assert crowded
    sending.close()
    receiving.close()
    os.close(memory)

resource.setrlimit(resource.RLIMIT_NOFILE, (900, 900))
if os.geteuid() == 0:  # root has no such limit
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
asyncio.run(asyncio.wait_for(main(), 20))
"""


def test_the_kernels_limit_of_descriptors_under_way_loses_no_frame() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CROWDED], capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2]
    )
    assert ended.returncode == 0, ended.stderr
