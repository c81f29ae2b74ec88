"""Trace file: valid at any time, arrows with both ends, nanosecond times."""

from __future__ import annotations

import errno
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rlinf_async._trace.state import trace_file
from rlinf_async._trace.state.trace_file import TracedProcess, TraceFile
from rlinf_async._trace.state.tracks import DrawnSpan
from tests._support.trace_files import Trace

DRIVER = TracedProcess(1, "driver", "node0", 10)
WORKER = TracedProcess((1 << 32) + 2, "rollout:0", "node1", 20)
MAIN = {1: "main"}


def call(*, begin: int = 2000, end: int = 9000, number: int = 7) -> DrawnSpan:
    return (1, begin, end, "rollout.step", "call", None, [1, number])


def callee(*, begin: int = 3000, end: int = 8000, number: int = 7, slot: int = 0) -> DrawnSpan:
    return (1, begin, end, "step", "call", None, [1, number, slot])


@pytest.fixture
def file(tmp_path: Path) -> Any:
    file = TraceFile(tmp_path / "folder" / "trace.json", 1000, {"run": "abcd"})
    yield file
    file.close()


def test_the_document_is_whole_after_every_step(file: TraceFile) -> None:
    about = json.loads(file.path.read_text())
    assert about == {"displayTimeUnit": "ms", "otherData": {"run": "abcd"}, "traceEvents": []}
    for number in range(3):
        file.add(DRIVER, MAIN if not number else {}, [call(number=number)])
        assert len(Trace(file.path).spans) == number + 1


def test_an_earlier_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("x" * 10_000)
    TraceFile(path, 0, {}).close()
    assert json.loads(path.read_text())["traceEvents"] == []


def test_times_are_microseconds_from_the_beginning_to_the_nanosecond(file: TraceFile) -> None:
    began = 10**17
    span = (1, began + 1, began + 1_000_002, "a", "b", None, None)
    file.add(DRIVER, MAIN, [span], shift=1000 - began)
    (drawn,) = Trace(file.path).spans
    assert (drawn.begin, drawn.end) == (Decimal("0.001"), Decimal("1000.002"))
    file.add(DRIVER, {}, [(1, 500, 900, "before", "b", None, None)])
    assert Trace(file.path).of("driver", "before")[0].begin == Decimal("-0.500")


@pytest.mark.parametrize("callee_first", [True, False])
def test_a_call_gets_its_arrows_whichever_end_comes_first(file: TraceFile, callee_first: bool) -> None:
    def add_callee(slot: int) -> None:
        process = TracedProcess(WORKER.endpoint + slot, f"rollout:{slot}", "node1", 20 + slot)
        file.add(process, MAIN, [callee(slot=slot)])

    if callee_first:
        add_callee(0)
    file.add(DRIVER, MAIN, [call()])
    if not callee_first:
        add_callee(0)
    add_callee(1)
    trace = Trace(file.path)
    assert [(caller.name, callee.process) for caller, callee in trace.arrows] == [
        ("rollout.step", "rollout:0"),
        ("rollout.step", "rollout:1"),
    ]


def test_a_call_whose_other_end_never_comes_gets_no_arrow(file: TraceFile) -> None:
    file.add(DRIVER, MAIN, [call(number=1)])
    file.add(WORKER, MAIN, [callee(number=2)])
    assert Trace(file.path).arrows == []


def test_an_arrow_never_goes_back_in_time(file: TraceFile) -> None:
    """By what is left of an error in the clocks."""
    file.add(DRIVER, MAIN, [call(begin=4000), call(begin=20_000, end=30_000, number=8)])
    file.add(WORKER, MAIN, [callee(begin=3000), callee(begin=9000, end=10_000, number=8)])
    assert len(Trace(file.path).arrows) == 1


def test_calls_whose_other_end_is_awaited_are_bounded(file: TraceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "MAX_OPEN_ARROWS", 3)
    file.add(DRIVER, MAIN, [call(begin=2000 + 10 * n, end=2005 + 10 * n, number=n) for n in range(10)])
    file.add(WORKER, MAIN, [callee(begin=2001 + 10 * n, end=2004 + 10 * n, number=n) for n in range(20)])
    assert len(Trace(file.path).arrows) == 3
    assert len(file._callers) == len(file._waiting) == 3


def test_spans_that_are_missing_are_told_of(file: TraceFile) -> None:
    file.add(DRIVER, MAIN, [call()], dropped=5)
    assert [event["name"] for event in Trace(file.path).events if event["ph"] == "i"] == ["5 spans are missing here"]


@pytest.mark.parametrize(
    "bad",
    [
        (1, "x", 3, "a", "b", None, None),
        (1, 2, 3, "a", "b", {"x": float("nan")}, None),
        (1, 2, 3, "a", "b", None, [1]),
        ("t", 2, 3, "a", "b", None, None),
        (1, 2),
    ],
)
def test_of_a_batch_that_makes_no_sense_nothing_is_written(file: TraceFile, bad: Any) -> None:
    file.add(DRIVER, MAIN, [call()])
    before = file.path.read_bytes()
    with pytest.raises((TypeError, ValueError, IndexError)):
        file.add(WORKER, MAIN, [callee(), bad])
    assert file.path.read_bytes() == before
    file.add(WORKER, MAIN, [callee(number=9)])
    assert "rollout:0" in Trace(file.path).processes


def test_a_disk_that_is_full_leaves_what_was_written_whole(file: TraceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.add(DRIVER, MAIN, [call()])
    write = os.pwrite
    sizes = iter([10])

    def short(fd: int, data: bytes, offset: int) -> int:
        return write(fd, data[: next(sizes, len(data))], offset)

    monkeypatch.setattr(os, "pwrite", short)
    with pytest.raises(OSError, match="no room") as raised:
        file.add(WORKER, MAIN, [callee()])
    assert raised.value.errno == errno.ENOSPC
    assert Trace(file.path).processes == {"driver"}


def test_a_file_that_cannot_be_begun_is_not_left_open() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="No space left"):
        TraceFile("/dev/full", 0, {})
    assert os.listdir("/proc/self/fd") == before


def test_names_may_hold_anything(file: TraceFile) -> None:
    name = 'a "quoted" \\ name\nof two lines, ünïcode \u2028 \U0001f600'
    file.add(DRIVER, MAIN, [(1, 1, 2, name, name, {name: name}, None)])
    (drawn,) = Trace(file.path).spans
    assert (drawn.name, drawn.category, drawn.args) == (name, name, {name: name})
