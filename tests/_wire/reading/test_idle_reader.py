"""Idle reader: sockets read by the waiting thread, in its loop and outside of it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from rlinf_async._core import dialect
from rlinf_async._waits.thread_gate import LockGate, may_wait
from rlinf_async._wire.reading.idle_reader import IdleReader
from rlinf_async._wire.reading.shared_selector import SharedSelector
from rlinf_async.work import Work, blocking


@dataclass
class Reading:
    """This thread's reader of one socket, and another loop that may read it too."""

    reader: IdleReader
    loop: asyncio.SelectorEventLoop
    other: asyncio.SelectorEventLoop
    ours: socket.socket
    theirs: socket.socket
    read: list[tuple[bytes, bool, int]] = field(default_factory=list)
    """What came, whether the loop ran, and the thread."""
    then: Callable[[], object] = lambda: None

    def take(self, in_loop: bool) -> None:
        try:
            data = self.ours.recv(10)
        except BlockingIOError:
            return
        self.read.append((data, in_loop, threading.get_ident()))
        self.then()

    def take_elsewhere(self) -> None:
        self.take(False)

    def keep_to_one_thread(self) -> None:
        """The other one does not read any more."""
        gone = threading.Event()
        self.other.call_soon_threadsafe(lambda: (self.other.remove_reader(self.ours.fileno()), gone.set()))
        assert gone.wait(5)


@pytest.fixture
def reading() -> Iterator[Reading]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    selector, second = SharedSelector(), SharedSelector()
    loop, other = asyncio.SelectorEventLoop(selector), asyncio.SelectorEventLoop(second)
    made = Reading(IdleReader(loop, selector, second), loop, other, ours, theirs)
    made.reader.add(ours.fileno(), made.take)
    other.add_reader(ours.fileno(), made.take_elsewhere)
    thread = threading.Thread(target=other.run_forever)
    thread.start()
    yield made
    other.call_soon_threadsafe(other.stop)
    thread.join()
    made.reader.remove(ours.fileno())
    made.reader.forget()
    loop.close()
    other.close()
    ours.close()
    theirs.close()


def test_a_thread_that_waits_outside_of_its_loop_reads_and_the_other_one_sleeps(reading: Reading) -> None:
    me = threading.get_ident()
    for _ in range(20):
        gate = reading.reader.gate()
        reading.then = gate.open
        threading.Timer(0.005, reading.theirs.send, (b"x",)).start()
        assert gate.wait(5)
    assert len(reading.read) == 20
    assert {in_loop for _, in_loop, _ in reading.read} == {False}
    # all, unless the machine is so loaded that it takes 5 ms to fall asleep
    assert sum(thread == me for _, _, thread in reading.read) >= 15


def test_a_thread_whose_loop_is_idle_reads_within_it(reading: Reading) -> None:
    reading.then = reading.loop.stop
    threading.Timer(0.05, reading.theirs.send, (b"x",)).start()
    reading.loop.run_forever()
    assert reading.read == [(b"x", True, threading.get_ident())]


def test_whoever_is_woken_by_what_is_read_runs_in_the_same_turn_of_the_loop(reading: Reading) -> None:
    called: list[str] = []
    reading.keep_to_one_thread()

    def arrived() -> None:
        reading.loop.call_soon(called.append, "woken")

    def scheduled() -> None:
        called.append("scheduled")
        reading.loop.call_soon(called.append, "next turn")
        reading.loop.call_soon(reading.loop.stop)

    def send() -> None:
        reading.theirs.send(b"x")
        reading.loop.call_soon(scheduled)

    reading.then = arrived
    reading.loop.call_soon(send)
    reading.loop.run_forever()
    assert called == ["scheduled", "woken", "next turn"]


def test_nothing_waits_in_the_middle_of_what_is_read(reading: Reading) -> None:
    work: Work[int] = Work()
    seen: list[object] = []

    def handle() -> None:
        seen.append(blocking(work))
        with pytest.raises(RuntimeError, match="a function that is given to then"):
            work.wait(5)
        gate.open()

    reading.then = handle
    reading.keep_to_one_thread()
    gate = reading.reader.gate()
    reading.theirs.send(b"x")
    assert gate.wait(5)
    assert seen == [work]
    work._settle(1)
    assert blocking(work) == 1


def test_by_rlinfs_rules_too_nothing_waits_in_the_middle_of_what_a_loop_reads(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait would hold the lock of the sockets, and the answer would never be read."""
    monkeypatch.setattr(dialect, "is_rlinf", True)
    work: Work[int] = Work()
    seen: list[object] = []

    def handle() -> None:
        seen.append(may_wait() or blocking(work))
        reading.loop.stop()

    reading.then = handle
    reading.keep_to_one_thread()
    reading.theirs.send(b"x")
    reading.loop.run_forever()
    assert seen == [work]

    async def user() -> bool:
        return may_wait()

    assert reading.loop.run_until_complete(user())


def test_another_thread_ends_the_wait(reading: Reading) -> None:
    gate = reading.reader.gate()
    threading.Timer(0.02, gate.open).start()
    assert gate.wait(5)
    assert gate.wait(5)  # and it stays open
    assert reading.reader.gate().wait(0.01) is False  # the next one does not


def test_a_wait_ends_in_time_however_much_arrives(reading: Reading) -> None:
    reading.then = lambda: reading.theirs.send(b"y")
    reading.theirs.send(b"x")
    assert reading.reader.gate().wait(0.1) is False
    assert len(reading.read) > 1


@pytest.mark.parametrize("seconds", [3e6, threading.TIMEOUT_MAX])
def test_a_wait_may_be_longer_than_the_kernel_counts(reading: Reading, seconds: float) -> None:
    gate = reading.reader.gate()
    reading.then = gate.open
    reading.theirs.send(b"x")
    assert gate.wait(seconds)


def test_what_was_removed_is_not_read(reading: Reading) -> None:
    reading.keep_to_one_thread()
    reading.reader.remove(reading.ours.fileno())
    reading.reader.remove(reading.ours.fileno())
    reading.theirs.send(b"x")
    assert reading.reader.gate().wait(0.05) is False
    assert not reading.read


def test_who_has_a_handler_for_alarms_has_them_raise_where_nothing_is_read(reading: Reading) -> None:
    assert not isinstance(reading.reader.gate(), LockGate)

    def raise_it(number: int, frame: object) -> None:
        raise TimeoutError("too long")

    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        gate = reading.reader.gate()
        assert isinstance(gate, LockGate)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeoutError, match="too long"):
            gate.wait(5)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_reader_that_fails_leaves_the_loop_alive(reading: Reading, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        reading.loop.call_soon(reading.loop.stop)
        raise ValueError("no such frame")

    reading.then = fail
    reading.keep_to_one_thread()
    reading.theirs.send(b"x")
    with caplog.at_level(logging.ERROR):
        reading.loop.run_forever()
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["no such frame"]


def test_a_forked_child_lets_go_of_it(reading: Reading) -> None:
    pid = os.fork()
    if not pid:
        reading.reader.forget()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    reading.then = (gate := reading.reader.gate()).open
    reading.theirs.send(b"x")
    assert gate.wait(5)
