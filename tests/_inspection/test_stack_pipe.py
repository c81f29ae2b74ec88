"""The pipe of stacks: a signal fills it and harms nobody, and a forked process has none."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import threading
from collections.abc import Iterator

import pytest

from rlinf_async._inspection import stack_pipe
from rlinf_async._inspection.state.stack_dump import SIGNAL, parse
from tests._support.forked_children import exit_code, forked


@pytest.fixture
def pipe() -> Iterator[int]:
    fd = stack_pipe.acquire()
    assert fd is not None
    yield fd
    stack_pipe.release()


def read(fd: int) -> str:
    """As a daemon does."""
    text = b""
    reader = os.open(f"/proc/{os.getpid()}/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while select.select([reader], [], [], 0.1)[0]:
            text += os.read(reader, 1 << 16)
    finally:
        os.close(reader)
    return text.decode()


def test_a_signal_brings_the_stacks_of_all_threads(pipe: int) -> None:
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait)
    thread.start()
    os.kill(os.getpid(), SIGNAL)
    functions = [{frame.function for frame in thread.frames} for thread in parse(read(pipe))]
    waiting.set()
    thread.join()
    assert any("test_a_signal_brings_the_stacks_of_all_threads" in names for names in functions)
    assert any("_bootstrap" in names for names in functions)


def test_a_full_pipe_holds_up_nobody(pipe: int) -> None:
    os.write(pipe, b"x" * (1 << 20))  # as much as fits
    os.kill(os.getpid(), SIGNAL)
    assert set(read(pipe)) == {"x"}


def test_threads_that_come_together_have_one_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    together, found, opened = threading.Barrier(2), [], stack_pipe._opened

    def open_together() -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.2)
        return opened()

    monkeypatch.setattr(stack_pipe, "_opened", open_together)
    threads = [threading.Thread(target=lambda: found.append(stack_pipe.acquire())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
        stack_pipe.release()
    assert found[0] == found[1]


def test_all_clients_have_one_pipe_and_the_last_one_closes_it(pipe: int) -> None:
    assert stack_pipe.acquire() == pipe
    stack_pipe.release()
    os.fstat(pipe)
    stack_pipe.release()
    assert not os.path.exists(f"/proc/self/fd/{pipe}")
    assert stack_pipe.acquire() is not None


def test_a_signal_that_comes_too_late_is_ignored() -> None:
    stack_pipe.acquire()
    stack_pipe.release()
    os.kill(os.getpid(), SIGNAL)
    assert signal.getsignal(SIGNAL) is signal.SIG_IGN


def test_a_forked_process_has_no_pipe(pipe: int) -> None:
    def look() -> None:
        assert not os.path.exists(f"/proc/self/fd/{pipe}")
        os.kill(os.getpid(), SIGNAL)
        assert not faulthandler.unregister(SIGNAL)

    with forked(look) as child:
        assert exit_code(child) == 0
    assert read(pipe) == ""


def test_a_handler_of_the_users_is_left_alone() -> None:
    heard: list[int] = []
    before = signal.signal(SIGNAL, lambda number, frame: heard.append(number))
    try:
        assert stack_pipe.acquire() is None
        os.kill(os.getpid(), SIGNAL)
        assert heard == [SIGNAL]
    finally:
        signal.signal(SIGNAL, before)
