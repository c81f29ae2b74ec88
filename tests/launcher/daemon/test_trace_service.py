"""Spans of all nodes on their way into one file."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._core import frames, operations
from rlinf_async._recorder import recording
from rlinf_async._recorder.state.span_log import RECORDS_AT, SpanLog, log_path
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.span_tail import SpanTail
from rlinf_launcher.daemon.trace_service import Traces
from tests._support.trace_files import Trace

RING = (recording.admits, recording.begin, recording.end)


class Nodes:
    """Two daemons with one directory of logs, of which the first writes the file."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.ahead = 0
        self.asked: list[str] = []
        self.gone: set[int] = set()
        self.welcomes: list[dict[str, Any]] = [{}, {}]
        self.traces = [self._traces(node) for node in (0, 1)]

    def _traces(self, node: int) -> Traces:
        node_links = {1 - node: SimpleNamespace(lost=None, name=f"node{1 - node}")}
        router: Any = SimpleNamespace(
            node=node, node_links=node_links, ask=self._ask, broadcast_event=lambda *event: None
        )
        return Traces(router, f"node{node}", "run", self.logs, lambda: self.welcomes[node], self.gone)

    def _ask(self, node: int, operation: operations.Operation[Any]) -> asyncio.Future[Any]:
        self.asked.append(type(operation).__name__)
        requester = Requester(frames.endpoint(1, 0), 1)
        if isinstance(operation, operations.ReadClock):
            answer = asyncio.get_running_loop().create_future()
            answer.set_result(time.monotonic_ns() + self.ahead)
            return answer
        assert isinstance(operation, operations.WriteSpans)
        return asyncio.ensure_future(self.traces[node].write_spans(requester, operation))

    async def start(self) -> None:
        facts = await self.traces[0].open_trace(Requester(1, 1), operations.OpenTrace(None))
        for traces in self.traces:
            await traces.start_trace(Requester(1, 1), operations.StartTrace(facts["node"], facts["path"]))

    async def collect(self) -> None:
        for traces in self.traces:
            await traces.collect_trace(Requester(1, 1), operations.CollectTrace())

    def close(self) -> Trace:
        for traces in self.traces:
            traces.close()
        return Trace(self.logs / "trace.json")

    def record(self, node: int, number: int, *names: str, run: str = "run") -> None:
        """Leave the span log of a process, with spans of these names."""
        endpoint = frames.endpoint(node, number)
        identity = {"process": f"{node}:{number}", "run": run, "node": node, "endpoint": endpoint, "pid": 1}
        memory = bytearray(RECORDS_AT + (1 << 16))
        clock = (lambda: time.monotonic_ns() + self.ahead) if node else time.monotonic_ns
        log = SpanLog(memory, identity, RING, clock=clock)
        for name in names:
            log.end(log.enter(name, "x", None))
        path = log_path(self.logs, endpoint)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(memory)


async def test_each_daemon_reads_the_processes_of_its_node_and_run_and_the_clocks_are_one(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.ahead = 10**13
    await nodes.start()
    nodes.record(0, 1, "a", "b")
    nodes.record(1, 1, "c")
    nodes.record(1, 2, "of an earlier run", run="earlier")
    (tmp_path / "recorder" / "100000003.spans").write_bytes(b"is being made")
    await nodes.collect()
    await nodes.collect()
    assert nodes.asked.count("WriteSpans") == 1
    nodes.record(1, 2, "d")  # in a directory that is used again, a process replaces the file of an earlier one
    await nodes.collect()
    trace = nodes.close()
    assert [(span.process, span.name) for span in trace.spans] == [
        ("0:1", "a"),
        ("0:1", "b"),
        ("1:1", "c"),
        ("1:2", "d"),
    ]
    assert trace.spans[-1].end - trace.spans[0].begin < 60_000_000


async def test_a_process_that_came_and_died_between_two_rounds_has_left_its_spans(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    await nodes.start()
    for node in (0, 1):
        nodes.record(node, 1, "last")
        nodes.gone.add(frames.endpoint(node, 1))
    await nodes.collect()
    assert [traces._tails for traces in nodes.traces] == [{}, {}]
    nodes.record(0, 2, "at the end of the daemon")
    assert [span.name for span in nodes.close().spans] == ["last", "last", "at the end of the daemon"]
    assert list((tmp_path / "recorder").iterdir()) == []  # megabytes each, and of no further use


async def test_a_daemon_that_can_open_no_more_files_reads_on_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(tmp_path)
    await nodes.start()
    nodes.record(0, 1, "a")

    def no_descriptor(tail: SpanTail) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for name in ("aim", "take"):
        with monkeypatch.context() as patch:
            patch.setattr(SpanTail, name, no_descriptor)
            await nodes.collect()
    await nodes.collect()
    assert [span.name for span in nodes.close().spans] == ["a"]


@pytest.mark.parametrize("cut_to", [None, 0, RECORDS_AT, RECORDS_AT + 3])
async def test_a_log_that_makes_no_sense_is_read_no_further_and_others_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cut_to: int | None
) -> None:
    nodes = Nodes(tmp_path)
    await nodes.start()
    nodes.record(0, 1)
    await nodes.collect()
    nodes.record(0, 1, "a")
    path = log_path(tmp_path, 1)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\xa1a\x00", b"\xc1\xc1\x00") if cut_to is None else content[:cut_to])
    nodes.record(0, 2, "b")
    async with asyncio.timeout(5):
        await nodes.collect()
        await nodes.collect()
    assert caplog.text.count("cannot be read any further") == 1
    assert [span.name for span in nodes.close().spans] == ["b"]


async def test_a_disk_that_is_full_ends_the_trace_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(tmp_path)
    await nodes.start()

    def no_room(*args: Any, **kwargs: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(nodes.traces[0]._file, "add", no_room)
    nodes.record(0, 1, "a")
    nodes.record(1, 1, "a")
    await nodes.collect()
    assert caplog.text.count("the trace ends here: no room") == 1
    assert nodes.close().spans == []
