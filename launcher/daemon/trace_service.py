"""Trace collection by daemons: one writes all processes' spans to a file, and compares the nodes' clocks.

Batches are taken as they come, and the file is whole after each::

    driver ── open_trace ──► its daemon, home     a file, and the clocks of all nodes
    driver ── trace ──► every daemon              ``traced``, to every process that there is, and in later welcomes
    process ── spans ──► home                     a batch, as often as there is one
    home ── CLOCK ──► daemons ──► home            again with the first batch from a node that comes seconds later
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, Final

from rlinf_async._core import frames, operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async._trace.state.clocks import ClockOffset
from rlinf_async._trace.state.trace_file import Process, TraceFile
from rlinf_async.errors import ConfigError

from .handlers import LATER, Requester
from .node_link import NodeLink
from .router import Router

logger = own_logger(__name__)

_CLOCK_SAMPLES: Final = 64
"""In a row; the one with the shortest way counts.  Where processors are busy most ways take longer than a call, which
would then be drawn before its caller and get no arrow."""

_COMPARE_S: Final = 5.0
"""After which the clocks are compared again."""

_CLOCKS_TIMEOUT_S: Final = 2.0
"""For the clocks of all nodes, before the trace begins."""

_SPANS_PER_TURN: Final = 64
"""Spans that are written without a break."""

_MAX_ROUNDS: Final = 64


class Traces:
    """The trace of the run, at one daemon.

    Args:
        name: of this node.
        log_dir: where the file is, unless somebody names another place.
        welcome: what every process of this node is told when it attaches.
        answer: answers a request that has waited.
        gone: processes that are no more.
    """

    def __init__(
        self,
        router: Router,
        name: str,
        run: str,
        log_dir: Path,
        welcome: Callable[[], dict[str, Any]],
        answer: Callable[[Requester, Any], None],
        gone: Container[int],
    ) -> None:
        self._router = router
        self._name = name
        self._run = run
        self._log_dir = log_dir
        self._welcome = welcome
        self._answer = answer
        self._gone = gone
        self._file: TraceFile | None = None
        self._broken = False
        self._turns = asyncio.Lock()
        """Batches are written in the order in which they came."""
        self._clocks: dict[int, ClockOffset] = {}
        self._left: dict[int, int] = {}
        """Questions of the present row that are still to be asked, by node."""
        self._compared: dict[int, asyncio.Future[None]] = {}
        self._rounds: dict[str, set[int]] = {}
        self._waiting: dict[str, tuple[Requester, set[int]]] = {}

    # -- the file -----------------------------------------------------------------------------------------------

    async def open_trace(self, requester: Requester, op: operations.OpenTrace) -> dict[str, Any]:
        """Makes this daemon the one that writes; returns what others have to know of that.

        Raises:
            ConfigError: the file cannot be written, or the run is traced already.
        """
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
            await self._compare_clocks()
        return {"node": self._router.node, "path": str(self._file.path)}

    async def start_trace(self, requester: Requester, op: operations.StartTrace) -> None:
        """The run is traced: every process of this node hears of it, now and later."""
        if "trace" not in self._welcome():
            self._welcome()["trace"] = facts = {"node": op.node, "path": op.path}
            self._router.tell_all("traced", facts)

    async def write_spans(self, requester: Requester, op: operations.WriteSpans) -> None:
        """A batch of what a process has recorded; it is in the file when this is answered."""
        if self._file is None or self._broken:
            return
        node = frames.node_of(requester.endpoint)
        clock = self._clocks.get(node)
        if clock is not None and time.monotonic_ns() - clock.heard_at > _COMPARE_S * 1e9 and not self._left.get(node):
            self._ask_clock(node, _CLOCK_SAMPLES)
        at = self._name if node == self._router.node else self._router.neighbours[node].name
        try:
            name, pid, shift, tracks, dropped, spans = frames.unpack(op.batch)
            process = Process(requester.endpoint, str(name), at, int(pid))
            async with self._turns:
                for first in range(0, len(spans), _SPANS_PER_TURN):
                    part = spans[first : first + _SPANS_PER_TURN]
                    self._file.add(process, tracks, part, dropped, shift=int(shift), clock=clock)
                    tracks, dropped = {}, 0
                    await asyncio.sleep(0)  # what else this daemon does is more urgent
        except OSError as error:
            self._broken = True
            logger.error("the trace ends here: %s", error)
        except (TypeError, ValueError, IndexError, AttributeError, frames.FrameError):
            logger.warning("endpoint %d sent spans that make no sense", requester.endpoint)

    async def flush_spans(self, requester: Requester, op: operations.FlushSpans) -> None:
        """Answered when everything is in the file that has come so far."""
        async with self._turns:
            pass

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    # -- clocks -------------------------------------------------------------------------------------------------

    async def read_clock(self, requester: Requester, op: operations.ReadClock) -> int:
        """The time, in nanoseconds of this daemon's monotonic clock."""
        return time.monotonic_ns()

    async def _compare_clocks(self) -> None:
        loop = asyncio.get_running_loop()
        for node in self._router.neighbours:
            self._clocks[node] = ClockOffset()
            self._compared[node] = loop.create_future()
            self._ask_clock(node, _CLOCK_SAMPLES)
        if self._compared:
            await asyncio.wait(self._compared.values(), timeout=_CLOCKS_TIMEOUT_S)
        self._compared.clear()
        for node, clock in self._clocks.items():
            if not clock.is_known:
                logger.warning("the clock of node %d is not known: its spans may stand in the wrong place", node)

    def _ask_clock(self, node: int, questions: int) -> None:
        neighbour = self._router.neighbours[node]
        self._left[node] = questions if neighbour.lost is None else 0
        if self._left[node]:
            neighbour.send((frames.CLOCK, 0, frames.endpoint(self._router.node, 0), node, time.monotonic_ns(), 0))

    def on_clock(self, neighbour: NodeLink, frame: list[Any]) -> None:
        """Another daemon asks for the time, or tells it."""
        heard = time.monotonic_ns()
        asked, theirs = frame[4], frame[5]
        if not theirs:
            me = frames.endpoint(self._router.node, 0)
            neighbour.send((frames.CLOCK, 0, me, neighbour.node, asked, heard))
            return
        clock = self._clocks.get(neighbour.node)
        if clock is None or not self._left.get(neighbour.node):
            return
        clock.add_sample(asked, theirs, heard)
        self._ask_clock(neighbour.node, self._left[neighbour.node] - 1)
        compared = self._compared.get(neighbour.node)
        if compared is not None and not compared.done() and not self._left[neighbour.node]:
            compared.set_result(None)

    # -- everything, now ----------------------------------------------------------------------------------------

    async def collect_spans(self, requester: Requester, op: operations.CollectSpans) -> list[int]:
        """Has every process of this node send what it has; those who will answer to the node that writes."""
        self._router.tell_all("collect_spans", {"round": op.round, "node": op.node})
        all_here = [each for each in self._router.endpoints.values() if each.role != "operator"]
        attached = [each for each in all_here if each.connection and each.exit_report is None]
        return [endpoint.id for endpoint in attached if endpoint.process or endpoint.is_known]

    async def spans_collected(self, requester: Requester, op: operations.SpansCollected) -> None:
        """A process has sent everything."""
        async with self._turns:  # its last batch is in the file
            pass
        if requester.endpoint in self._gone:
            return
        self._rounds.setdefault(op.round, set()).add(requester.endpoint)
        while len(self._rounds) > _MAX_ROUNDS:  # of those that nobody waited for to the end
            del self._rounds[next(iter(self._rounds))]
        self._look(op.round)

    async def await_spans(self, requester: Requester, op: operations.AwaitSpans) -> Any:
        """Answered once these processes have sent everything, or are gone."""
        self._waiting[op.round] = (requester, set(op.processes))
        self._look(op.round)
        return LATER

    async def forget_spans(self, requester: Requester, op: operations.ForgetSpans) -> None:
        """Nobody waits for them any longer."""
        self._waiting.pop(op.round, None)
        self._rounds.pop(op.round, None)

    def drop(self, gone: int) -> None:
        """A process is no more: nobody waits for its spans, nor it for those of others."""
        for turn, (requester, _) in list(self._waiting.items()):
            if requester.endpoint == gone:
                del self._waiting[turn]
        self.look_again()
        for turn, sent in list(self._rounds.items()):
            sent.discard(gone)
            if not sent:
                del self._rounds[turn]

    def look_again(self) -> None:
        """Some process or node is no more."""
        for turn in list(self._waiting):
            self._look(turn)

    def _look(self, turn: str) -> None:
        if turn not in self._waiting:
            return
        requester, processes = self._waiting[turn]
        told = self._rounds.get(turn, set())
        missing = {each for each in processes - told if each not in self._gone}
        neighbours = self._router.neighbours
        lost = {node for node, neighbour in neighbours.items() if neighbour.lost is not None}
        if lost.issuperset(map(frames.node_of, missing)):
            del self._waiting[turn]
            self._rounds.pop(turn, None)
            self._answer(requester, None)
