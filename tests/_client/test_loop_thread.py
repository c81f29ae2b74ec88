"""A loop in a thread of its own: who ends it, and who does not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from rlinf_async._client.loop_thread import LoopThread
from rlinf_async._core import dialect
from rlinf_async._waits.thread_gate import may_wait, must_await
from rlinf_async._worker import concurrent_calls
from rlinf_async.work import Work


def answered(thread: LoopThread) -> str:
    """The thread that the loop runs in."""
    name: Future[str] = Future()
    thread.call(lambda: name.set_result(threading.current_thread().name))
    return name.result(5)


def test_a_loop_goes_on_that_a_callback_has_stopped_or_broken() -> None:
    broken: list[BaseException] = []
    thread = LoopThread("rlinf-test", asyncio.new_event_loop(), broken.append)

    def fail() -> None:
        raise SystemExit(3)

    for callback in (thread.loop.stop, fail):
        thread.call(callback)
        assert answered(thread) == "rlinf-test"
    assert [str(error) for error in broken] == ["3"]
    thread.stop()
    assert thread.loop.is_closed()


def test_by_rlinfs_rules_too_nothing_waits_in_the_frameworks_own_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it waits for would never be read."""
    monkeypatch.setattr(dialect, "is_rlinf", True)
    thread = LoopThread()
    first: Work[None] = Work()
    then = first.then(lambda: (may_wait(), must_await()))
    thread.call(first._settle)
    assert then.wait(5) == (False, True)
    thread.stop()


def test_by_rlinfs_rules_a_concurrent_method_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "is_rlinf", True)
    answer: Future[bool] = Future()
    threads: list[LoopThread] = []

    def make(*args: Any) -> LoopThread:
        threads.append(LoopThread(*args))
        return threads[0]

    monkeypatch.setattr(concurrent_calls, "LoopThread", make)
    concurrent = concurrent_calls.ConcurrentCalls(lambda call, loop: answer.set_result(may_wait()))
    concurrent.submit(None)  # type: ignore[arg-type]  # nothing looks at the call
    assert answer.result(5)
    threads[0].stop()


def test_a_loop_is_closed_for_which_there_is_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loop = asyncio.new_event_loop()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        LoopThread("rlinf-test", loop)
    assert loop.is_closed()


FIRST_LOOP = """
import os, resource
from rlinf_async._client.loop_thread import LoopThread

free = [os.eventfd(0) for _ in range(2)]
resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1,) * 2)
for fd in free:
    os.close(fd)
try:
    LoopThread()
except OSError as error:
    print(error.strerror)
"""


def test_a_process_without_descriptors_for_its_first_loop_lives_on() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_LOOP], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Too many open files\n")
