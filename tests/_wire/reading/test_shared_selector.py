"""Shared selector: one socket in two loops, read by the idle one."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from rlinf_async._wire.reading.shared_selector import SharedSelector


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def loop_that_shares(sock: socket.socket) -> asyncio.SelectorEventLoop:
    selector = SharedSelector()
    selector.share(sock.fileno())
    return asyncio.SelectorEventLoop(selector)


def test_the_idle_loop_that_registered_first_reads_and_the_other_one_sleeps(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    read: list[str] = []
    first, second = loop_that_shares(ours), loop_that_shares(ours)

    def read_as(name: str) -> None:
        try:
            read.append(name if ours.recv(1) else "")
        except BlockingIOError:
            read.append(f"{name} in vain")
        second.call_soon_threadsafe(second.call_later, 0.005, send)

    def send() -> None:
        if len(read) < 20:
            theirs.send(b"x")
        else:
            first.call_soon_threadsafe(first.stop)

    first.add_reader(ours.fileno(), read_as, "first")
    second.add_reader(ours.fileno(), read_as, "second")
    second.call_later(0.005, send)
    thread = threading.Thread(target=second.run_forever)
    thread.start()
    first.run_forever()
    second.call_soon_threadsafe(second.stop)
    thread.join()
    first.close()
    second.close()
    assert read.count("first") >= 15  # all, unless the machine is so loaded that it takes 5 ms to fall asleep again
    assert "second in vain" not in read


def test_the_other_loop_reads_while_the_first_one_is_busy(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    read = threading.Event()
    first, second = loop_that_shares(ours), loop_that_shares(ours)
    first.add_reader(ours.fileno(), pytest.fail, "the busy loop has read")

    def take() -> None:
        ours.recv(1)
        read.set()

    second.add_reader(ours.fileno(), take)
    thread = threading.Thread(target=second.run_forever)
    thread.start()

    def be_busy() -> None:
        theirs.send(b"x")
        assert read.wait(5)
        first.call_soon(first.stop)

    first.call_soon(be_busy)
    first.run_forever()
    second.call_soon_threadsafe(second.stop)
    thread.join()
    first.close()
    second.close()


def test_a_shared_socket_may_also_be_waited_for_until_it_can_be_written_to(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    loop = loop_that_shares(ours)
    seen: list[str] = []

    def writable() -> None:
        seen.append("writable")
        loop.remove_writer(ours.fileno())
        theirs.send(b"x")

    def readable() -> None:
        seen.append(ours.recv(1).decode())
        loop.stop()

    loop.add_reader(ours.fileno(), readable)
    loop.add_writer(ours.fileno(), writable)
    loop.run_forever()
    assert loop.remove_reader(ours.fileno())
    assert not loop.remove_reader(ours.fileno())
    loop.close()
    assert seen == ["writable", "x"]


def test_an_event_loop_lives_on_it() -> None:
    async def talk() -> bytes:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
        process = await asyncio.create_subprocess_exec("true")
        assert await process.wait() == 0
        await asyncio.sleep(0.001)
        return answer

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(SharedSelector())) as runner:
        assert runner.run(talk()) == b""
