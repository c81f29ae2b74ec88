"""Spans of users: arguments, and a fork in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from rlinf_async import Tracer
from rlinf_async._recorder import recording
from rlinf_async._recorder.state.span_log import RECORDS_AT, SpanLog
from rlinf_async._trace.tracer import plain


def test_a_span_that_ends_in_a_forked_child_is_not_ended_in_the_log_of_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = SpanLog(bytearray(RECORDS_AT + 8192), {"run": "abcd"}, (recording.admits, recording.begin, recording.end))
    monkeypatch.setattr(recording, "log", log)
    with Tracer.trace_span("step"):
        recording._forget()  # as after a fork
        monkeypatch.setattr(recording, "log", None)
        before = log._words[0]
    assert log._words[0] == before > 0


async def test_a_traced_stream_that_is_closed_has_cleaned_up_by_then() -> None:
    cleaned_up = []

    @Tracer.trace_func
    async def items() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            cleaned_up.append(True)

    async with contextlib.aclosing(items()) as stream:
        assert await anext(stream) == 1
    assert cleaned_up


def test_of_arguments_numbers_and_texts_are_kept_and_of_anything_else_its_type() -> None:
    class Tensor:
        def __repr__(self) -> str:
            raise RuntimeError("it would wait for the device")

    args = {
        "step": 3,
        "loss": float("nan"),
        "text": "x" * 999,
        "list": [1, "a", Tensor()],
        "tensor": Tensor(),
        "n": None,
    }
    assert plain(args) == {
        "step": 3, "loss": "nan", "text": "x" * 200, "list": [1, "a", "<Tensor>"], "tensor": "<Tensor>", "n": None,
    }  # fmt: skip
    assert plain({"huge": 10**400, "large": 2**70, "yes": True}) == {
        "huge": "a large number", "large": "1.18059e+21", "yes": True,
    }  # fmt: skip
    assert plain({}) is plain(None) is None
    assert len(plain({str(number): number for number in range(99)}) or {}) == 16
