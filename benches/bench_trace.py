"""Cost of tracing: a user's span, an operation of the framework, and the check while tracing is off.

    python -m benches.bench_trace [--quick]

A span counts with all work that its process does for it: its begin, its end, and the records for its daemon.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from typing import Final

from rlinf_async import Tracer
from rlinf_async._recorder import recording
from rlinf_async._recorder.state.event_ring import EventKind, EventRing, size_of
from rlinf_async._recorder.state.span_log import RECORDS_AT, SpanLog

from .measure import ITSELF, OURS, Case, Target, alternate, print_row
from .options import parse

BENCH: Final = "trace"
AT_ONCE: Final = 1000

Measure = Callable[[], float]
"""Return the microseconds of one."""


def cases() -> dict[str, Case]:
    return {
        "span": Case(BENCH, "span", "us", targets=[Target(5, ITSELF)]),
        "span_in_coroutine": Case(BENCH, "span_in_coroutine", "us", targets=[Target(5, ITSELF)]),
        "operation": Case(BENCH, "operation", "us", targets=[Target(5, ITSELF)]),
        "not_traced": Case(BENCH, "not_traced", "us", targets=[Target(0.1, ITSELF)]),
    }


def main(arguments: list[str] | None = None) -> None:
    options = parse("What a trace costs.", rounds=25, arguments=arguments)
    measures: dict[str, Measure] = {
        "span": _span,
        "span_in_coroutine": lambda: asyncio.run(_span_in_coroutine()),
        "operation": _operation,
        "not_traced": _not_traced,
    }
    for name, case in cases().items():
        if options.wants(name):
            measure = measures[name]
            rounds = alternate(options.rounds, {OURS: lambda measure=measure: _sample(measure)}, warm_up=True)  # type: ignore[misc]
            print_row({**case.row(rounds), "loop": options.loop})


def _sample(measure: Measure) -> Sequence[float]:
    return [measure() for _ in range(5)]


def _recorded(record: Callable[[], None]) -> float:
    recording.log = _log()
    began = time.perf_counter()
    try:
        record()
    finally:
        recording.log = None
    return (time.perf_counter() - began) * 1e6 / AT_ONCE


@functools.cache
def _log() -> SpanLog:
    """Return a log with its ring, whose memory has been touched."""
    identity = {"run": "bench"}
    ring = EventRing(bytearray(size_of(65536)), 65536, identity)
    return SpanLog(bytearray(RECORDS_AT + (1 << 22)), identity, (lambda: True, ring.begin, ring.end))


def _many_spans() -> None:
    for _ in range(AT_ONCE):
        with Tracer.trace_span("step"):
            pass


def _span() -> float:
    return _recorded(_many_spans)


async def _span_in_coroutine() -> float:
    return _recorded(_many_spans)


def _operation() -> float:
    def record() -> None:
        log = recording.log
        assert log is not None
        for _ in range(AT_ONCE):
            log.end(log.begin(EventKind.GET, "obs"))

    return _recorded(record)


def _not_traced() -> float:
    """Run the check that a span makes, without the loop around it."""
    numbers = range(AT_ONCE)
    began = time.perf_counter()
    for _ in numbers:
        if recording.log is not None:
            raise RuntimeError("a run is traced")
    middle = time.perf_counter()
    for _ in numbers:
        pass
    ended = time.perf_counter()
    return max(1e-9, (middle - began) - (ended - middle)) * 1e6 / AT_ONCE


if __name__ == "__main__":
    main()
