"""Span logs, written by processes and read by daemons: complete, in bounded memory."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from rlinf_async._recorder.state.event_ring import EventKind, EventRing, size_of
from rlinf_async._recorder.state.ring_contents import RingContents
from rlinf_async._recorder.state.span_log import RECORDS_AT, SpanLog
from rlinf_launcher.daemon.span_tail import SpanTail

IDENTITY = {"process": "rollout:0", "run": "abcd", "node": 0, "endpoint": 7, "pid": 1}
SIZE = 1 << 16


class Pair:
    """The span log of a process, and its reader."""

    def __init__(self, path: Path, *, admits: bool = True, size: int = SIZE) -> None:
        self.ring = EventRing(bytearray(size_of(1024)), 1024, IDENTITY)
        self.memory = bytearray(RECORDS_AT + size)
        self.log = SpanLog(self.memory, IDENTITY, (lambda: admits, self.ring.begin, self.ring.end))
        self.path = path
        self.path.write_bytes(self.memory)
        self.tail = SpanTail(path)

    def read(self) -> tuple[list[Any], int]:
        """Return the new spans, and the number of missing ones."""
        spans, missing = [], 0
        self.path.write_bytes(self.memory)  # in a run it is a mapping of the file
        self.tail.aim()
        while self.tail.has_more:
            _, dropped, new = self.tail.take()
            spans += new
            missing += dropped
        return spans, missing


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path / "7.spans")


def test_operations_of_all_kinds_are_named_spans(pair: Pair) -> None:
    call, handle = SimpleNamespace(source=3, call=5, task=None), Mock(_call=0)
    serving = pair.log.begin(EventKind.SERVE, "step", 0.0, call)
    calling = pair.log.begin(EventKind.CALL, "env.reset", 4, handle)
    handle._call = 9  # it leaves later than it begins
    pair.log.end(calling, "WorkerDied")
    for kind, name, value in ((EventKind.PUT, "obs", 8), (EventKind.GET, "obs", 0), (EventKind.SEND, "send a:0", 16)):
        pair.log.end(pair.log.begin(kind, name, value), "TimeoutError" if kind == EventKind.GET else False)
    pair.log.end(pair.log.begin(EventKind.SPAN, "train", 0.0, ("rollout", None)))
    pair.log.end(pair.log.enter("load", "io", {"shard": 3}))
    pair.log.end(serving, True)
    spans, missing = pair.read()
    assert missing == 0
    assert [span[3:] for span in spans] == [
        ("env.reset", "call", None, (7, 9)),
        ("put obs", "channel", {"bytes": 8}, None),
        ("get obs", "channel", {"error": "TimeoutError"}, None),
        ("send a:0", "message", {"bytes": 16}, None),
        ("train", "rollout", None, None),
        ("load", "io", {"shard": 3}, None),
        ("step", "call", {"failed": True}, (3, 5, 0)),
    ]
    assert {span[0] for span in spans} == {1}


@pytest.mark.parametrize("admits", [True, False])
def test_the_ring_keeps_operations_but_no_user_spans(tmp_path: Path, admits: bool) -> None:
    pair = Pair(tmp_path / "7.spans", admits=admits)
    for number in range(3):
        pair.log.end(pair.log.begin(EventKind.PUT, "obs", number))
        pair.log.end(pair.log.begin(EventKind.LINE, "send a:0"))
        pair.log.end(pair.log.enter("load", "io", None))
    assert len(pair.read()[0]) == 9
    assert len(RingContents.read(bytes(pair.ring._buffer)).events) == (6 if admits else 0)


def test_a_call_that_is_never_ended_is_not_kept(pair: Pair) -> None:
    class Handle:
        _call = 0

    for _ in range(3):
        pair.log.begin(EventKind.CALL, "env.reset", 4, Handle())
    assert len(pair.log._calls) == 0


def test_spans_are_read_once_and_open_ones_after_their_end(pair: Pair) -> None:
    outer = pair.log.enter("outer", "x", None)
    pair.log.end(pair.log.enter("inner", "x", None))
    assert [span[3] for span in pair.read()[0]] == ["inner"]
    assert pair.read() == ([], 0)
    pair.log.end(outer)
    pair.log.end_innermost("never begun", "x")
    assert [span[3] for span in pair.read()[0]] == ["outer"]


def test_a_burst_that_laps_the_log_is_counted(pair: Pair) -> None:
    pair.log.end(pair.log.enter("before", "x", None))
    outer = pair.log.enter("outer", "x", None)
    assert len(pair.read()[0]) == 1
    for _ in range(5000):
        pair.log.end(pair.log.enter("step", "x", None))
    assert pair.read() == ([], 5001)  # with the outer one, whose end may be among what is lost
    pair.log.end(outer)
    pair.log.end(pair.log.enter("behind", "x", None))
    spans, missing = pair.read()
    assert ([span[3] for span in spans], missing) == (["behind"], 0)


def test_a_log_goes_round_many_times(pair: Pair) -> None:
    count = 0
    for _ in range(100):
        for _ in range(200):
            pair.log.end(pair.log.enter("step", "x", {"text": "y" * 100}))
        spans, missing = pair.read()
        assert missing == 0
        count += len(spans)
    assert count == 20_000
    assert pair.log._words[0] > 10 * SIZE


def test_names_and_arguments_may_hold_anything_and_be_long(pair: Pair) -> None:
    pair.log.end(pair.log.enter("\ud800 ünïcode", "x", {"a": "\ud800"}))
    pair.log.end(pair.log.enter("x" * 200, "x", {str(n): ["y" * 200] * 16 for n in range(16)}))
    (first, second), missing = pair.read()
    assert (first[3], first[5], missing) == ("\ud800 ünïcode", {"a": "\ud800"}, 0)
    assert (second[3], second[5]) == ("x" * 200, {"arguments": "too long for the trace"})


def test_another_processs_clock_is_converted_to_the_daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = time.monotonic_ns
    assert Pair(tmp_path / "7.spans").tail.shift == 0
    monkeypatch.setattr(time, "monotonic_ns", lambda: here() + 10**15)
    pair = Pair(tmp_path / "8.spans")
    monkeypatch.undo()
    assert abs(SpanTail(pair.path).shift + 10**15) < 10**7


def test_a_finalizer_may_end_an_operation_inside_the_log(pair: Pair) -> None:
    class Ends:
        def __init__(self) -> None:
            self.itself = self
            self.span = pair.log.begin(EventKind.PUT, "dropped")

        def __del__(self) -> None:
            pair.log.end(self.span)

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            Ends()
            pair.log.end(pair.log.enter("step", "x", None))
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    spans, missing = pair.read()
    assert (len(spans), missing) == (400, 0)


def test_threads_may_record_while_the_daemon_reads(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "7.spans", size=1 << 20)

    def work() -> None:
        for _ in range(500):
            span, operation = pair.log.enter("step", "x", None), pair.log.begin(EventKind.PUT, "obs")
            pair.log.end(span)
            pair.log.end(operation)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    count = 0
    while any(thread.is_alive() for thread in threads):
        count += len(pair.read()[0])
    for thread in threads:
        thread.join()
    assert count + len(pair.read()[0]) == 4 * 500 * 2
