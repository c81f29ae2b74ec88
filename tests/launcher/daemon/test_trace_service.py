"""Rounds in which processes send the last of their spans."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlinf_async._core import frames, operations
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.trace_service import Traces

THERE, LOST = frames.endpoint(1, 5), frames.endpoint(2, 5)


async def test_a_round_waits_for_processes_of_nodes_that_are_there_and_for_no_others(tmp_path: Path) -> None:
    router: Any = SimpleNamespace(
        node=0, neighbours={1: SimpleNamespace(lost=None), 2: SimpleNamespace(lost="it burnt")}
    )
    answered: list[int] = []
    traces = Traces(router, "here", "run", tmp_path, dict, lambda who, answer: answered.append(who.number), set())
    await traces.await_spans(Requester(9, 1), operations.AwaitSpans("first", [THERE, LOST]))
    assert answered == []
    await traces.await_spans(Requester(9, 2), operations.AwaitSpans("second", [LOST]))
    assert answered == [2]
    await traces.spans_collected(Requester(THERE, 1), operations.SpansCollected("first"))
    assert answered == [2, 1]
