"""``Endpoint``: a driver, worker or sub-worker at a daemon: its socket, pending calls, limit on queued output."""

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

MAX_QUEUED_BYTES: Final = 4 << 20
"""Bytes that wait for an endpoint, beyond which it gets no lines of its workers any more."""


class Endpoint:
    """A process attached to this node.

    Attributes:
        number: its id on this node.
        process: the worker process behind it; None for a driver, and for a worker's own subprocess.
        root: of such a subprocess, the worker that it descends from; then it has a name, and exchanges messages.
        pending_calls: calls that it has accepted and not yet answered.
        exit_report: once it is dead, the facts of its death.
        journal: once it is dead, how far its calls had come; None where it has left no journal.
        is_known: it has said hello, and was welcome.
        stacks: the descriptor of its own into which it writes stacks when ``stack_dump.SIGNAL`` comes; None without.
        witness: the descriptor of its own at which a thread waits that answers for a blocked loop; None without.
        has_direct_sockets: it may hand sockets of its own to those who call it.
        awaited_by: endpoints that wait to hear from it how much of a direct socket has come, with the socket's owner.
        resumed: callers whose socket of this worker has ended; answers that it said were given may have been lost.
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
        """Whether it has messages for others, and they for it."""
        return self.process is not None or self.root is not None

    @property
    def os_pid(self) -> int:
        """Its process id; 0 of a worker that is still being started."""
        return self.pid if self.process is None else self.process.pid

    @property
    def is_away(self) -> bool:
        """Whether it has died and is to come back, as another endpoint that is not there yet."""
        return self.exit_report is not None and bool(frames.unpack(self.exit_report).get("returns"))

    def note_hello(self, facts: Any) -> None:
        """Keeps what it says of itself, as far as that makes sense."""
        self.is_known = True
        stacks = facts.get("stacks") if type(facts) is dict else None
        self.stacks = stacks if type(stacks) is int and stacks >= 0 else None
        witness = facts.get("witness") if type(facts) is dict else None
        self.witness = witness if type(witness) is int and witness >= 0 else None

    def send_signal(self, number: int) -> None:
        """By its pidfd: no other process can have its number meanwhile.

        Raises:
            ProcessLookupError: it has ended.
        """
        if self.process is not None:
            self.process.send_signal(number)
        elif self.pidfd >= 0:
            signal.pidfd_send_signal(self.pidfd, number)
        else:
            raise ProcessLookupError("it has ended")

    def death_of(self, source: int, call: int, method: str = "") -> bytes:
        """Once it is dead, the answer to one of its calls.

        Args:
            method: that was open when it died, though its daemon did not know.
        """
        assert self.exit_report is not None
        execution = Execution.UNKNOWN if self.journal is None else self.journal.execution(source, call)
        if method:
            report = frames.unpack(self.exit_report)
            return frames.pack({**report, "execution": execution.value, "methods": [*report["methods"], method]})
        key = (self.exit_report, execution)
        if key not in self._deaths:  # the same for thousands of calls
            self._deaths[key] = frames.pack({**frames.unpack(self.exit_report), "execution": execution.value})
        return self._deaths[key]

    def send(self, frame: frames.Frame, fds: Sequence[int] = ()) -> None:
        if self.connection is None:
            close_fds(fds)
        else:
            self.connection.send(frame, fds)

    def send_lines(self, frame: frames.Frame) -> None:
        """Sends what a worker has written, an ``output`` event; where this process is far behind, its number of lines.

        From the first line that is left out nothing more is passed on until the socket is empty, so that it can be
        said where they are missing.
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
        for (who, stream), (count, log) in left_out.items():
            lines = [f"… {count} lines left out here, see {log}"]
            facts = {"who": who, "stream": stream, "lines": lines, "log": log}
            self.send((frames.EVENT, 0, me, self.id, "output", facts))
