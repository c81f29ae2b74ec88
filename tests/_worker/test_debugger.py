"""Debugger of a worker, without a daemon."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlinf_async._core import operations
from rlinf_async._worker.debugging import Debugger


def test_a_debugger_that_fails_takes_no_answer_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def look_at(*_: Any) -> None:
        raise RuntimeError("pdb itself")

    monkeypatch.setenv("RLINF_POST_MORTEM_S", "1")
    debugger = Debugger(cast(Any, None), "rank", cast(asyncio.AbstractEventLoop, None), list)
    monkeypatch.setattr(debugger, "_pdb", lambda: SimpleNamespace(look_at=look_at))
    try:
        raise ValueError("of a method")
    except ValueError as error:
        debugger.post_mortem(error)
    assert "pdb itself" in caplog.text


def test_a_stop_whose_operator_has_left_is_none() -> None:
    loop = asyncio.new_event_loop()
    client = SimpleNamespace(request=print, flush=lambda: None, later=print, endpoint=1)
    debugger = Debugger(cast(Any, client), "rank", loop, list)

    def stop() -> None:
        debugger._pdb().stop(sys._getframe(), sys._getframe())
        sys.settrace(None)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    thread.join(10)
    loop.close()
    assert not thread.is_alive()


def test_a_breakpoint_inside_a_command_at_the_prompt_is_passed_over() -> None:
    said: list[str] = []
    lines = iter(("p inner()", "c"))

    def request(operation: Any) -> None:
        if isinstance(operation, operations.DebugSaid):
            said.append(operation.text)
            debugger._lines.put(f"{next(lines)}\n")

    def inner() -> str:
        debugger._breakpoint()
        return "gone on"

    def stop() -> None:
        debugger._breakpoint()
        sys.settrace(None)
        assert inner

    loop = asyncio.new_event_loop()
    client = SimpleNamespace(request=request, flush=lambda: None, later=print, endpoint=1)
    debugger = Debugger(cast(Any, client), "rank", loop, list)
    debugger._operator = 1
    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    thread.join(5)
    loop.close()
    assert not thread.is_alive()
    assert "gone on" in said[1]


def test_a_thread_that_stops_is_not_reported_as_resumed_after_another() -> None:
    asked: list[str] = []
    due: list[Any] = []
    other = threading.Thread(target=lambda: stop(2))

    class Client:
        def request(self, operation: operations.RankStopped) -> None:
            asked.append(operation.where.partition(":")[2][:1])

        def later(self, seconds: float, callback: Any) -> None:
            due.append(callback)

        def flush(self) -> None:
            pass

        @property
        def endpoint(self) -> int:
            if due and other.ident is None:  # within the report that the first thread has resumed
                other.start()
                other.join(0.1)
            return 1

    def stop(line: int) -> None:
        debugger.stopped(sys._getframe(), line, "", None, lambda: None, waits=True)

    debugger = Debugger(cast(Any, Client()), "rank", cast(asyncio.AbstractEventLoop, None), list)
    stop(1)
    due[0]()
    other.join(5)
    assert asked == ["1", "", "2"]
    due[1]()
    assert asked == ["1", "", "2", ""]
