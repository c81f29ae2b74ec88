"""Turns this process's tracing on/off, records calls and operations; has all processes flush to the trace file.

Where a run is not traced, ``recorder`` is None, and everybody who has something to record asks for nothing but that::

    if tracing.recorder is not None:
        tracing.follow(work, "put obs", "channel")

What is recorded stays here until there is a batch of it, or a call has ended and nothing was sent for a moment; then it
goes to the daemon that writes the file (``launcher/daemon/trace_service.py``).  Nobody waits for that.  What cannot be
sent is kept up to a bound, beyond which spans are left out and counted.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from typing import Any, Final, Protocol

from rlinf_async import settings
from rlinf_async._client.client import NodeClient
from rlinf_async._core import operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async._recorder import recording
from rlinf_async._trace.state.spans import Recorder, Span
from rlinf_async._trace.trace import Trace
from rlinf_async.errors import DeadlineExceeded, NodeLost, RLinfAsyncError
from rlinf_async.work import Work

logger = own_logger(__name__)

_CLOCK_SAMPLES: Final = 32
"""Times that a driver compares its clock with its daemon's; the one with the shortest way counts."""

recorder: Recorder | None = None
"""Of this process; None where it records nothing."""

_trace: Trace | None = None


class Call(Protocol):
    """A handle, or a stream."""

    _call: int
    """What the call is known by; 0 if it never left."""


# -- on and off -------------------------------------------------------------------------------------------------


def attach(client: NodeClient, name: str, *, compares_clocks: bool = False) -> None:
    """Has this process record its latest events, and spans from the moment at which its daemon says so.

    Args:
        name: of the process in the trace.
        compares_clocks: it was not born of its daemon, and may have a clock of its own.
    """

    def on_traced(facts: dict[str, Any]) -> None:
        if compares_clocks:
            client.run(_join(client, name, facts), what="the comparison of clocks")
        else:
            _turn_on(Trace(client, name, facts["node"], facts["path"]))

    def greeted() -> None:
        welcome = client.welcome
        identity = {"process": name, "run": welcome.get("run"), "node": client.node, "endpoint": client.endpoint}
        identity |= {"pid": os.getpid(), "host": socket.gethostname()}
        recording.attach(client, welcome.get("log_dir", ""), identity)
        facts = welcome.get("trace")
        if facts is not None:
            on_traced(facts)

    def closed(facts: dict[str, Any]) -> None:
        _turn_off(client)
        recording.detach(client)

    client.events.on("traced", on_traced)
    client.events.on("collect_spans", lambda facts: _collect(client, facts))
    client.events.on("closed", closed)
    client.ready._follow(greeted)


async def open_trace(client: NodeClient, name: str, path: str | None) -> None:
    """Has the run traced, and this process record.

    Args:
        path: absolute; None for a file in the folder of the logs.

    Raises:
        ConfigError: the file cannot be written, or the run is traced into another one.
    """
    facts = await client.request(operations.OpenTrace(path), what="a file for the trace")
    start = operations.StartTrace(facts["node"], facts["path"])
    for request in [client.request(start, node=peer["node"]) for peer in client.welcome["nodes"]]:
        await request
    await _join(client, name, facts)


async def close_trace(client: NodeClient) -> None:
    """Returns once what this process has recorded of a run is in the file; it records no more of it."""
    trace = _trace
    if trace is None or not trace.is_of(client):
        return
    _turn_off(client)
    with contextlib.suppress(RLinfAsyncError):  # the run has ended by itself: what has arrived is in the file
        for request in (*trace.send_all(), client.request(operations.FlushSpans(), node=trace.home)):
            await request.async_wait()


async def collect(client: NodeClient) -> str | None:
    """Returns once what all processes of the run have recorded so far is in the file; its path.

    Those that do not answer in time are left out.
    """
    trace = _trace
    if trace is None or not trace.is_of(client):
        return None
    turn = secrets.token_hex(8)
    collect_spans = operations.CollectSpans(turn, trace.home)
    requests = [client.request(collect_spans, node=peer["node"]) for peer in client.welcome["nodes"]]
    processes: list[int] = []
    for request in requests:
        with contextlib.suppress(NodeLost):
            processes += await request
    collected = client.request(operations.AwaitSpans(turn, processes), node=trace.home, what="the spans of the run")
    timeout = settings.TRACE_COLLECT_TIMEOUT_S()
    try:
        await collected.async_wait(timeout)
    except DeadlineExceeded:
        logger.warning("not every process has sent its spans within %g s; the trace goes on without them", timeout)
        await client.request(operations.ForgetSpans(turn), node=trace.home)
    return trace.path


def flush_at_exit() -> None:
    """Sends what there is, before the process ends."""
    if _trace is not None:
        _trace.send_all()


async def _join(client: NodeClient, name: str, facts: dict[str, Any]) -> None:
    _turn_on(Trace(client, name, facts["node"], facts["path"], await _shift(client)))


async def _shift(client: NodeClient) -> int:
    """Nanoseconds by which the daemon's clock is ahead, where that can be told from none at all."""
    shortest, shift = None, 0
    for _ in range(_CLOCK_SAMPLES):
        asked = time.monotonic_ns()
        theirs = await client.request(operations.ReadClock(), what="the time")
        heard = time.monotonic_ns()
        if shortest is None or heard - asked < shortest:
            shortest, shift = heard - asked, theirs - (asked + heard) // 2
    return shift if abs(shift) > (shortest or 0) else 0


def _turn_on(trace: Trace) -> None:
    global recorder, _trace
    if _trace is None:
        recorder, _trace = trace.recorder, trace
    elif not _trace.is_of_run(trace):
        logger.warning("this process takes part in two runs that are traced; what it does itself is in %s", _trace.path)


def _turn_off(client: NodeClient) -> None:
    if _trace is not None and _trace.is_of(client):
        _forget()


def _forget() -> None:
    global recorder, _trace
    recorder = _trace = None


os.register_at_fork(after_in_child=_forget)


def _collect(client: NodeClient, facts: dict[str, Any]) -> None:
    if _trace is not None and _trace.is_of(client):
        _trace.send_all()
    client.request(operations.SpansCollected(facts["round"]), node=facts["node"])


# -- what others have to say ------------------------------------------------------------------------------------


def follow(work: Work[Any], name: str, category: str, args: dict[str, Any] | None = None) -> None:
    """Records an operation that begins now, to its end."""
    tracer = recorder
    if tracer is None:
        return
    work._follow(_End(tracer, tracer.begin(name, category, args), work))


class _End:
    """Called at the end of an operation."""

    __slots__ = ("_recorder", "_span", "_work")

    def __init__(self, recorder: Recorder, span: Span, work: Work[Any]) -> None:
        self._recorder = recorder
        self._span = span
        self._work = work

    def __call__(self) -> None:
        error = self._work._error
        if error is not None:
            self._span.args = {**(self._span.args or {}), "error": type(error).__name__}
        self._recorder.end(self._span)


def follow_call(call: Call, ended: Work[Any], name: str) -> None:
    """Records a call that is made now, to its last answer; an arrow goes from there to each rank that it reaches."""
    tracer, trace = recorder, _trace
    if tracer is None or trace is None:
        return
    span = tracer.begin(name, "call")

    def answered() -> None:
        if call._call:
            span.flow = (trace.endpoint, call._call)
        tracer.end(span)
        trace.call_ended()

    ended._follow(answered)


def enter_call(source: int, call: int, slot: int, method: str, task: Any = None) -> Span | None:
    """A call that has come begins to run, in that task or here."""
    tracer = recorder
    return None if tracer is None else tracer.enter(method, "call", None, (source, call, slot), of=task)


def leave_call(span: Span, failed: bool) -> None:
    """It has run."""
    trace = _trace
    if failed:
        span.args = {"failed": True}
    if trace is not None:
        trace.recorder.leave(span)
        trace.call_ended()
