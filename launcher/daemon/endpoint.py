"""``Endpoint``: a driver, worker or sub-worker attached to a daemon, with its socket, pending calls and output."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any, Final

from rlinf_async._core import frames
from rlinf_async._core.pending_calls import PendingCalls
from rlinf_async._core.segment import close_fds
from rlinf_async._recorder.state.call_journal import Execution, JournalContents
from rlinf_async._wire.unix import Connection

from .worker_process import WorkerProcess

MAX_QUEUED_BYTES: Final = 4 << 20  # with more bytes queued, workers' output lines are dropped


class Endpoint:
    """A process attached to this node.

    Attributes:
        number: the endpoint's number on this node.
        process: the worker process; None for a driver and for a worker's own subprocess.
        root: for a worker's subprocess, the worker from which it descends.
        pending_calls: accepted calls that have no answer yet.
        exit_report: packed facts about the death, set once the process is dead.
        journal: progress of its calls when it died; None if the process left no journal.
        is_known: True once the process's HELLO was accepted.
        stacks: the process's own descriptor to which it dumps stacks on ``stack_dump.SIGNAL``, if any.
        witness: the process's own descriptor that wakes the thread that answers for a blocked loop, if any.
        has_direct_sockets: True if the process may hand its own sockets to callers.
        awaited_by: endpoints that wait to learn how many frames arrived on a direct socket, with the socket's owner.
        resumed: callers whose direct socket to this worker broke, so that answers reported as sent may be lost.
    """

    def __init__(self, node: int, number: int, role: str) -> None:
        self.id = frames.endpoint(node, number)
        self.number = number
        self.role = role
        self.process: WorkerProcess | None = None
        self.pending_calls = PendingCalls()
        self.exit_report: bytes | None = None
        self.journal: JournalContents | None = None
        self._deaths: dict[tuple[bytes, Execution], bytes] = {}
        self.connection: Connection | None = None
        self.root: Endpoint | None = None
        self.name = ""
        self.pid = 0
        self.pidfd = -1
        self._left_out: dict[tuple[str, str], tuple[int, str]] = {}
        self.is_known = False
        self.stacks: int | None = None
        self.witness: int | None = None
        self.has_direct_sockets = False
        self.awaited_by: set[tuple[int, int]] = set()
        self.resumed: set[int] = set()

    def __repr__(self) -> str:
        return f"<Endpoint {self.role} {self.number} [{len(self.pending_calls)} calls open]>"

    @property
    def exchanges(self) -> bool:
        """True if the process exchanges messages: a worker or a worker's subprocess."""
        return self.process is not None or self.root is not None

    @property
    def os_pid(self) -> int:
        """Process id; 0 while a worker is starting."""
        return self.pid if self.process is None else self.process.pid

    @property
    def is_away(self) -> bool:
        """True if the process has died and its rank will be restarted."""
        return self.exit_report is not None and bool(frames.unpack(self.exit_report).get("returns"))

    def note_hello(self, facts: Any) -> None:
        """Store the facts of a HELLO frame; ignore malformed ones."""
        self.is_known = True
        stacks = facts.get("stacks") if type(facts) is dict else None
        self.stacks = stacks if type(stacks) is int and stacks >= 0 else None
        witness = facts.get("witness") if type(facts) is dict else None
        self.witness = witness if type(witness) is int and witness >= 0 else None

    def send_signal(self, number: int) -> None:
        """Send a signal through the pidfd, never to a process with a reused id.  Raises ProcessLookupError."""
        if self.process is not None:
            self.process.send_signal(number)
        elif self.pidfd >= 0:
            signal.pidfd_send_signal(self.pidfd, number)
        else:
            raise ProcessLookupError("it has ended")

    def death_of(self, source: int, call: int, method: str = "") -> bytes:
        """Return the packed answer for a call that was lost when this process died.

        Args:
            method: a method that was running at the death, unknown to the daemon.
        """
        assert self.exit_report is not None
        execution = Execution.UNKNOWN if self.journal is None else self.journal.execution(source, call)
        if method:
            report = frames.unpack(self.exit_report)
            return frames.pack({**report, "execution": execution.value, "methods": [*report["methods"], method]})
        key = (self.exit_report, execution)
        if key not in self._deaths:  # cached, because thousands of calls may share one answer
            self._deaths[key] = frames.pack({**frames.unpack(self.exit_report), "execution": execution.value})
        return self._deaths[key]

    def send(self, frame: frames.Frame, fds: Sequence[int] = ()) -> None:
        if self.connection is None:
            close_fds(fds)
        else:
            self.connection.send(frame, fds)

    def send_lines(self, frame: frames.Frame) -> None:
        """Send an ``output`` event, or count its lines as dropped if the endpoint reads too slowly.

        After the first dropped line all lines are dropped until the socket is empty, so that the note appears where the
        lines are missing.
        """
        connection = self.connection
        if connection is None:
            return
        if not self._left_out and connection.queued_bytes <= MAX_QUEUED_BYTES:
            connection.send(frame)
            return
        facts = frame[5]
        key = (facts["who"], facts["stream"])
        count, _ = self._left_out.get(key, (0, ""))
        self._left_out[key] = (count + len(facts["lines"]), facts["log"])
        connection.on_drained = self._report_left_out

    def _report_left_out(self) -> None:
        left_out, self._left_out = self._left_out, {}
        me = frames.endpoint(frames.node_of(self.id), 0)
        for (worker, stream), (count, log) in left_out.items():
            lines = [f"… {count} lines left out here, see {log}"]
            facts = {"who": worker, "stream": stream, "lines": lines, "log": log}
            self.send((frames.EVENT, 0, me, self.id, "output", facts))
