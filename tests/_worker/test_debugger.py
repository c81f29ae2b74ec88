"""Debugger of a worker, without a daemon."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

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
