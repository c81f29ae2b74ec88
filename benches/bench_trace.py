"""Cost of tracing: a span of the user's, an operation of the framework's, and the check where tracing is off.

    python -m benches.bench_trace [--quick]

A span counts with everything that its process does for it: it is begun, ended, kept, and packed for the daemon that
writes the file.  Nothing is sent.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from rlinf_async import Tracer
from rlinf_async._core import frames
from rlinf_async._trace import recorder as tracing
from rlinf_async._trace.state.spans import Recorder
from rlinf_async._trace.trace import who

from .measure import ITSELF, OURS, Case, Target, alternate, print_row
from .options import parse

BENCH: Final = "trace"
AT_ONCE: Final = 1000

Measure = Callable[[], float]
"""Microseconds of one."""


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


def _recorded(recorder: Recorder, record: Callable[[], None]) -> float:
    tracing.recorder = recorder
    began = time.perf_counter()
    try:
        record()
        while (batch := recorder.take()) is not None:
            frames.pack(["bench", 1, 0, *batch])
    finally:
        tracing.recorder = None
    return (time.perf_counter() - began) * 1e6 / AT_ONCE


def _recorder() -> Recorder:
    return Recorder(who, lambda: None, threading.get_ident())


def _many_spans() -> None:
    for _ in range(AT_ONCE):
        with Tracer.trace_span("step"):
            pass


def _span() -> float:
    return _recorded(_recorder(), _many_spans)


async def _span_in_coroutine() -> float:
    recorder = _recorder()
    call = recorder.enter("call", "call")
    seconds = _recorded(recorder, _many_spans)
    recorder.leave(call)
    return seconds


def _operation() -> float:
    recorder = _recorder()

    def record() -> None:
        for _ in range(AT_ONCE):
            recorder.end(recorder.begin("get obs", "channel"))

    return _recorded(recorder, record)


def _not_traced() -> float:
    """The test that a hook makes, without the loop around it."""
    numbers = range(AT_ONCE)
    began = time.perf_counter()
    for _ in numbers:
        if tracing.recorder is not None:
            raise RuntimeError("a run is traced")
    middle = time.perf_counter()
    for _ in numbers:
        pass
    ended = time.perf_counter()
    return max(1e-9, (middle - began) - (ended - middle)) * 1e6 / AT_ONCE


if __name__ == "__main__":
    main()
