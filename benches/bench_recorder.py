"""Cost of the flight recorder: an event, and pipelined calls and channels with the recorder on and off.

    python -m benches.bench_recorder [--quick]

Two clusters run side by side, one with ``RLINF_RECORDER_EVENTS=0``, and the rounds alternate between them.
"""

from __future__ import annotations

import dataclasses
import functools
import mmap
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from rlinf_async._recorder.state.event_ring import EventKind, EventRing, RingAdmission, size_of

from . import bench_call, bench_channel, contestant, session
from .contestant import ContestantError
from .measure import ITSELF, OURS, Case, Target, alternate, print_row
from .options import Options, parse
from .session import Job, Measurement, Standing

BENCH: Final = "recorder"
OFF: Final = "off"
SLOTS: Final = 65536
EVENT: Final = Case(BENCH, "event", "us", targets=[Target(1, ITSELF)])
LEFT_OUT: Final = Case(BENCH, "left_out", "us", targets=[Target(0.15, ITSELF)])
_OFF_ENV: Final = ("env", "RLINF_RECORDER_EVENTS=0", sys.executable)


def main(arguments: list[str] | None = None) -> None:
    options = parse("What the flight recorder costs.", rounds=9, arguments=arguments)
    count = 10_000 if options.quick else 1_000_000
    for case, measure in ((EVENT, _events), (LEFT_OUT, _left_out)):
        if options.wants(case.name):
            rounds = alternate(options.rounds, {OURS: functools.partial(measure, count)}, warm_up=True)
            print_row({**case.row(rounds), "loop": options.loop, "count": count})
    calls = _against_off(bench_call.local_measurements(options.quick), "pipelined")
    opening: Job = ("cold", {"workers": bench_call.RANKS, "method": "ping_def"})
    _compare(calls, options, functools.partial(_start, options=options, script="ours.py", opening=opening))
    items = [*bench_channel.same_node(options.quick), *bench_channel.many_keys(options.quick)]
    channels = _against_off(items, str(bench_channel.IN_FLIGHT)) + _against_off(items, "keys")
    opening = ("start", {"workers": 2})
    _compare(channels, options, functools.partial(_start, options=options, script="exchange_ours.py", opening=opening))


def _events(count: int) -> Sequence[float]:
    """Return the microseconds per event; half of the events are ends."""
    with mmap.mmap(-1, size_of(SLOTS)) as memory:
        ring = EventRing(memory, SLOTS, {})
        numbers = range(count // 2)
        began = time.perf_counter()
        for _ in numbers:
            ring.end(ring.begin(EventKind.SEND, "send actor:0", 4096.0))
        seconds = time.perf_counter() - began
        del ring
    return [seconds * 1e6 / count]


def _left_out(count: int) -> Sequence[float]:
    """Return the microseconds per operation that is not recorded because there are too many."""
    admits = RingAdmission(2, lambda count: None).question()  # one operation in 30 s
    admits()
    numbers = range(count)
    began = time.perf_counter()
    for _ in numbers:
        admits()
    return [(time.perf_counter() - began) * 1e6 / count]


def _against_off(measurements: Sequence[Measurement], part: str) -> list[Measurement]:
    """Return the cases whose name contains ``part``, with the disabled recorder as the only peer."""
    return [
        dataclasses.replace(
            each,
            case=dataclasses.replace(each.case, bench=BENCH, limit=None, targets=[Target(0.95, OFF, at_least=True)]),
            limit=None,
            peers=[OFF],
            peer_count=None,
        )
        for each in measurements
        if part in each.case.name
    ]


def _compare(measurements: Sequence[Measurement], options: Options, start: Callable[[str], Standing]) -> None:
    wanted = [each for each in measurements if options.wants(each.case.name)]
    if not wanted:
        return
    try:
        with contestant.ended_in_order(), ExitStack() as stack:
            standing = {name: stack.enter_context(start(name)) for name in (OURS, OFF)}
            session.print_rows(wanted, session.run(wanted, standing, options), options)
    except ContestantError as error:
        sys.exit(str(error))


def _start(name: str, *, options: Options, script: str, opening: Job) -> Standing:
    launch = _OFF_ENV if name == OFF else None
    return Standing(functools.partial(contestant.ours, "--loop", options.loop, script=script, launch=launch), opening)


if __name__ == "__main__":
    main()
