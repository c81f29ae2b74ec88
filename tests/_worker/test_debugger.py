"""Debugger of a worker, without a daemon."""

from __future__ import annotations

import asyncio
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
