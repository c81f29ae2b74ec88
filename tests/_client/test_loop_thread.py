"""A loop in a thread of its own: who ends it, and who does not."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from rlinf_async._client.loop_thread import LoopThread


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


def test_a_loop_is_closed_for_which_there_is_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loop = asyncio.new_event_loop()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        LoopThread("rlinf-test", loop)
    assert loop.is_closed()
