"""Trace collection by daemons: one of them writes all processes' spans to a file and compares the nodes' clocks.

Every daemon reads its processes' span logs four times a second, and on request; the file is valid after each batch::

    driver ── OpenTrace ──► its daemon, home      creates the file
    driver ── StartTrace ──► every daemon         sends ``traced`` to its processes, and in later welcomes
    process ──► its span log                      all its operations (_recorder/state/span_log.py)
    daemon ── WriteSpans ──► home                 that log's new spans (span_tail.py)
    home ── ReadClock ──► that daemon             many times in a row, at the first batch and every few seconds

A dead process leaves its span log behind, and reading a span log does not wait for a stopped process.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any, Final

import msgpack

from rlinf_async._core import frames, operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async._recorder.state.event_ring import DIRECTORY
from rlinf_async._recorder.state.span_log import SUFFIX
from rlinf_async._trace.state.clocks import ClockOffset
from rlinf_async._trace.state.trace_file import TracedProcess, TraceFile
from rlinf_async.errors import ConfigError

from .handlers import Requester
from .router import Router
from .span_tail import SpanTail

logger = own_logger(__name__)

_INTERVAL_S: Final = 0.25  # interval between reads, too short for a process to fill its span log

_CLOCK_SAMPLES: Final = 64
"""Number of clock readings; only the one with the shortest round trip counts. On busy processors, most round trips
take longer than a call, so the trace would show the call before its caller and without an arrow."""

_CLOCK_TIMEOUT_S: Final = 2.0

_CLOCK_AGE_S: Final = 5.0


class Traces:
    """One daemon's part in the run's trace; ``log_dir`` is the file's default folder."""

    def __init__(
        self,
        router: Router,
        name: str,
        run: str,
        log_dir: Path,
        welcome: Callable[[], dict[str, Any]],
        gone: Container[int],
    ) -> None:
        self._router = router
        self._name = name
        self._run = run
        self._log_dir = log_dir
        self._welcome = welcome
        self._gone = gone
        self._tails: dict[str, SpanTail] = {}  # maps each file name to a reader of a local process's span log
        self._seen_files: set[str] = set()
        self._file: TraceFile | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._turns = asyncio.Lock()  # held while batches are sent, to keep their order
        self._clocks: dict[int, ClockOffset] = defaultdict(ClockOffset)

    def __repr__(self) -> str:
        return f"<Traces [{len(self._tails)} processes, {self._file!r}]>"

    # -- the file -----------------------------------------------------------------------------------------------

    async def open_trace(self, requester: Requester, op: operations.OpenTrace) -> dict[str, Any]:
        """Make this daemon the trace's writer; return facts for other daemons.  Raises ConfigError."""
        path = Path(op.path or self._log_dir / "trace.json")
        known = self._welcome().get("trace")
        if known is not None:
            if op.path and (known["node"], known["path"]) != (self._router.node, str(path)):
                raise ConfigError(f"this run is traced already, into {known['path']}: it cannot be into {path} as well")
            return dict(known)
        if self._file is None:
            about = {"run": self._run, "began": datetime.datetime.now(datetime.UTC).isoformat(), "clock": self._name}
            try:
                self._file = TraceFile(path, time.monotonic_ns(), about)
            except OSError as error:
                raise ConfigError(f"the trace cannot be written to {path}: {error.strerror}") from error
        return {"node": self._router.node, "path": str(self._file.path)}

    async def start_trace(self, requester: Requester, op: operations.StartTrace) -> None:
        """Start tracing: inform every present and future process of this node."""
        if "trace" not in self._welcome():
            self._welcome()["trace"] = facts = {"node": op.node, "path": op.path}
            self._router.broadcast_event("traced", facts)
            self._wait()

    async def write_spans(self, requester: Requester, op: operations.WriteSpans) -> None:
        """Write a process's spans, sent by its daemon; the answer confirms that the file contains them."""
        node = frames.node_of(requester.endpoint)
        clock = None if node == self._router.node else self._clocks[node]
        if clock is not None and (not clock.is_known or time.monotonic_ns() - clock.heard_at > _CLOCK_AGE_S * 1e9):
            with contextlib.suppress(TimeoutError):  # that node has just been lost
                async with asyncio.timeout(_CLOCK_TIMEOUT_S):
                    for _ in range(_CLOCK_SAMPLES):
                        asked = time.monotonic_ns()
                        remote_time = await self._router.ask(node, operations.ReadClock())
                        clock.add_sample(asked, remote_time, time.monotonic_ns())
        self._write(node, op.batch)

    def _write(self, node: int, batch: list[Any]) -> None:
        if self._file is None:
            return
        at = self._name if node == self._router.node else self._router.node_links[node].name
        try:
            endpoint, name, pid, shift, tracks, dropped, spans = batch
            process = TracedProcess(endpoint, str(name), at, int(pid))
            self._file.add(process, tracks, spans, dropped, shift=int(shift), clock=self._clocks.get(node))
        except OSError as error:
            logger.error("the trace ends here: %s", error)
            self._end_file()
        except (TypeError, ValueError, IndexError, AttributeError):
            logger.warning("node %d sent spans that make no sense", node)

    async def read_clock(self, requester: Requester, op: operations.ReadClock) -> int:
        return time.monotonic_ns()

    def close(self) -> None:
        """Write the remaining spans of this node's processes, and remove their span logs."""
        if self._timer is not None:
            self._timer.cancel()
        if self._file is not None:
            for batch in self._batches():
                self._write(self._router.node, batch)
            self._end_file()
        for name in list(self._tails):
            self._remove(name)

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- the processes of this node -----------------------------------------------------------------------------

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._begin_round)

    def _begin_round(self) -> None:
        self._router.ask(self._router.node, operations.CollectTrace()).add_done_callback(self._end_round)

    def _end_round(self, done: asyncio.Future[None]) -> None:
        # An error ends the rounds: either the writing node was lost, or the handler has logged the error.
        if not done.cancelled() and done.exception() is None:
            self._wait()

    async def collect_trace(self, requester: Requester, op: operations.CollectTrace) -> None:
        """Write everything that this node's processes have recorded so far."""
        if (facts := self._welcome().get("trace")) is None:
            return
        home = facts["node"]
        async with self._turns:
            for batch in self._batches():
                # Write locally without a request, because this daemon's shutdown would drop the request with spans
                # already read.
                if home == self._router.node:
                    self._write(home, batch)
                    await asyncio.sleep(0)  # let the daemon's more urgent tasks run
                else:
                    await self._router.ask(home, operations.WriteSpans(batch))

    def _batches(self) -> Iterator[list[Any]]:
        # Scan files, not endpoints, because a process that came and went since the last round has left its log.
        with contextlib.suppress(OSError), os.scandir(self._log_dir / DIRECTORY) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and entry.name not in self._seen_files:
                    # The file may be incomplete because its process is still creating it.
                    with contextlib.suppress(OSError, ValueError):
                        self._find(entry)
        for name, tail in list(self._tails.items()):
            # Check before reading: only then does the read include the last spans of a process that has ended.
            has_ended = tail.identity["endpoint"] in self._gone
            identity = [tail.identity["endpoint"], tail.identity["process"], tail.identity["pid"], tail.shift]
            try:
                tail.aim()
                while tail.has_more:
                    yield [*identity, *tail.take()]
            except FileNotFoundError:
                has_ended = True
            except OSError:  # no descriptor is free; the next round reads the rest
                has_ended = False
            except (TypeError, ValueError, KeyError, msgpack.UnpackException) as error:
                logger.warning("the spans of %s cannot be read any further: %s", tail, error)
                has_ended = True
            if has_ended:
                self._remove(name)

    def _remove(self, name: str) -> None:
        del self._tails[name]
        with contextlib.suppress(OSError):
            (self._log_dir / DIRECTORY / name).unlink()

    def _find(self, entry: os.DirEntry[str]) -> None:
        # A log directory that the user chose may contain files of other nodes and of earlier runs.
        if frames.node_of(int(entry.name.removesuffix(SUFFIX), 16)) == self._router.node:
            tail = SpanTail(Path(entry.path))
            if tail.identity["run"] == self._run:
                self._tails[entry.name] = tail
                self._seen_files.add(entry.name)
