"""The daemon's part in the run's trace: the driver's daemon writes the file, the others tell it the time.

Batches are taken as they come, and the file is whole after each::

    driver ── open_trace ──► its daemon, home     a file, and the clocks of all nodes
    driver ── trace ──► every daemon              ``traced``, to every process that there is, and in later welcomes
    process ── spans ──► home                     a batch, as often as there is one
    home ── CLOCK ──► daemons ──► home            again with the first batch from a node that comes seconds later
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, Final

from rlinf_async._core import frames
from rlinf_async._trace.state.clocks import ClockOffset
from rlinf_async._trace.state.trace_file import Process, TraceFile
from rlinf_async.errors import ConfigError

from .channels import LATER
from .node_link import NodeLink
from .router import Router

logger = logging.getLogger(__name__)

QUESTIONS: Final = 64
"""In a row; the one with the shortest way counts.  Where processors are busy most ways take longer than a call, which
would then be drawn before its caller and get no arrow."""

AGAIN: Final = 5.0
"""Seconds after which the clocks are compared again."""

PATIENCE: Final = 2.0
"""Seconds for the clocks of all nodes, before the trace begins."""

SLICE: Final = 64
"""Spans that are written without a break."""

MOST_ROUNDS: Final = 64


class Traces:
    """The trace of the run, at one daemon.

    Args:
        name: of this node.
        log_dir: where the file is, unless somebody names another place.
        welcome: what every process of this node is told when it attaches.
        answer: tells an asker, by its ask, what it waited for.
        gone: processes that are no more.
    """

    def __init__(
        self,
        router: Router,
        name: str,
        run: str,
        log_dir: Path,
        welcome: Callable[[], dict[str, Any]],
        answer: Callable[[int, int, bool, Any], None],
        gone: Set[int],
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
        self._waiting: dict[str, tuple[int, int, set[int]]] = {}

    # -- the file -----------------------------------------------------------------------------------------------

    async def do_open_trace(self, source: int, ask: int, arguments: Any) -> dict[str, Any]:
        """Makes this daemon the one that writes; returns what others have to know of that.

        Raises:
            ConfigError: the file cannot be written, or the run is traced already.
        """
        path = Path(arguments["path"] or self._log_dir / "trace.json")
        known = self._welcome().get("trace")
        if known is not None:
            if arguments["path"] and (known["node"], known["path"]) != (self._router.node, str(path)):
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

    async def do_trace(self, source: int, ask: int, arguments: Any) -> bool:
        """The run is traced: every process of this node hears of it, now and later."""
        if "trace" not in self._welcome():
            self._welcome()["trace"] = arguments
            self._router.tell_all("traced", arguments)
        return True

    async def do_spans(self, source: int, ask: int, arguments: Any) -> bool:
        """A batch of what a process has recorded; it is in the file when this is answered."""
        if self._file is None or self._broken:
            return False
        node = frames.node_of(source)
        clock = self._clocks.get(node)
        if clock is not None and time.monotonic_ns() - clock.heard_at > AGAIN * 1e9 and not self._left.get(node):
            self._ask_clock(node, QUESTIONS)
        at = self._name if node == self._router.node else self._router.neighbours[node].name
        try:
            name, pid, shift, tracks, dropped, spans = frames.unpack(arguments)
            process = Process(source, str(name), at, int(pid))
            async with self._turns:
                for first in range(0, len(spans), SLICE):
                    part = spans[first : first + SLICE]
                    self._file.add(process, tracks, part, dropped, shift=int(shift), clock=clock)
                    tracks, dropped = {}, 0
                    await asyncio.sleep(0)  # what else this daemon does is more urgent
        except OSError as error:
            self._broken = True
            logger.error("the trace ends here: %s", error)
            return False
        except (TypeError, ValueError, IndexError, AttributeError, frames.FrameError):
            logger.warning("endpoint %d sent spans that make no sense", source)
            return False
        return True

    async def do_written(self, source: int, ask: int, arguments: Any) -> bool:
        """Answered when everything is in the file that has come so far."""
        async with self._turns:
            return True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    # -- clocks -------------------------------------------------------------------------------------------------

    async def do_clock(self, source: int, ask: int, arguments: Any) -> int:
        """The time, in nanoseconds of this daemon's monotonic clock."""
        return time.monotonic_ns()

    async def _compare_clocks(self) -> None:
        loop = asyncio.get_running_loop()
        for node in self._router.neighbours:
            self._clocks[node] = ClockOffset()
            self._compared[node] = loop.create_future()
            self._ask_clock(node, QUESTIONS)
        if self._compared:
            await asyncio.wait(self._compared.values(), timeout=PATIENCE)
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
        clock.hear(asked, theirs, heard)
        self._ask_clock(neighbour.node, self._left[neighbour.node] - 1)
        compared = self._compared.get(neighbour.node)
        if compared is not None and not compared.done() and not self._left[neighbour.node]:
            compared.set_result(None)

    # -- everything, now ----------------------------------------------------------------------------------------

    async def do_collect_spans(self, source: int, ask: int, arguments: Any) -> list[int]:
        """Has every process of this node send what it has; those who will answer to the node that writes."""
        self._router.tell_all("collect_spans", arguments)
        attached = [each for each in self._router.endpoints.values() if each.connection and each.obituary is None]
        return [endpoint.id for endpoint in attached if endpoint.process or endpoint.is_known]

    async def do_collected(self, source: int, ask: int, arguments: Any) -> bool:
        """A process has sent everything."""
        await self.do_written(source, ask, arguments)
        if source in self._gone:
            return False
        self._rounds.setdefault(arguments, set()).add(source)
        while len(self._rounds) > MOST_ROUNDS:  # of those that nobody waited for to the end
            del self._rounds[next(iter(self._rounds))]
        self._look(arguments)
        return True

    async def do_await_spans(self, source: int, ask: int, arguments: Any) -> Any:
        """Answered once these processes have sent everything, or are gone."""
        processes = arguments["processes"]
        if not all(type(process) is int for process in processes):
            raise ValueError(f"processes must be numbers of endpoints, got {processes!r}")
        self._waiting[arguments["round"]] = (source, ask, set(processes))
        self._look(arguments["round"])
        return LATER

    async def do_forget_spans(self, source: int, ask: int, arguments: Any) -> bool:
        """Nobody waits for them any longer."""
        self._waiting.pop(arguments["round"], None)
        self._rounds.pop(arguments["round"], None)
        return True

    def drop(self, gone: int) -> None:
        """A process is no more: nobody waits for its spans, nor it for those of others."""
        for turn, (source, *_) in list(self._waiting.items()):
            if source == gone:
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
        source, ask, processes = self._waiting[turn]
        missing = processes - self._rounds.get(turn, set()) - self._gone
        neighbours = self._router.neighbours
        lost = {node for node, neighbour in neighbours.items() if neighbour.lost is not None}
        if lost.issuperset(map(frames.node_of, missing)):
            del self._waiting[turn]
            self._rounds.pop(turn, None)
            self._answer(source, ask, True, True)
