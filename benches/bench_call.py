"""What a call costs: alone, in flight with others, to a group, to another node, with a large argument.

    python -m benches.bench_call [--peer ray] [--peer xoscar] [--quick]

Every contestant is started once and stays; the rounds go from one to the next and back.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from . import contestant, measure
from .contestant import Contestant, ContestantError
from .measure import LIMIT, OURS, Case, Target
from .options import Options, parse

BENCH: Final = "call"
RANKS: Final = 4
MEBIBYTES: Final = 256
RANK_CALLS: Final = "calls x ranks/s"

ECHO: Final = "echo over one UNIX socket"
ECHO_EACH: Final = f"echo over {RANKS} UNIX sockets"
GRPC_ECHO: Final = "echo over a bare grpc.aio stream"
MEMCPY: Final = f"one memcpy of {MEBIBYTES} MiB"


@dataclass(frozen=True)
class Measurement:
    """A case, the work that measures it, and the work that measures its limit."""

    case: Case
    work: str
    arguments: Mapping[str, Any]
    limit: str | None = None
    limit_arguments: Mapping[str, Any] | None = None
    peers: Sequence[str] = contestant.PEERS


def _microseconds(name: str, *targets: Target, limit: str) -> Case:
    return Case(BENCH, name, "us", 1e6, limit=limit, targets=targets)


def _rate(name: str, unit: str, *targets: Target, limit: str) -> Case:
    return Case(BENCH, name, unit, more_is_better=True, limit=limit, targets=targets)


def local_measurements(quick: bool) -> list[Measurement]:
    """Driver and workers on one machine; the targets of one call and of a group hold for both kinds of method."""
    one, many = (50, 200) if quick else (500, 5000)
    group, groups = (50, 100) if quick else (300, 1000)
    in_flight = [peer for peer in contestant.PEERS if peer != "rlinf"]  # its handles block
    found = []
    for suffix, method in (("", "ping"), ("_def", "ping_def")):
        calling = {"count": one, "method": method}
        found += [
            Measurement(
                _microseconds(f"one_call{suffix}", Target(0.8, "xoscar"), Target(0.2, "ray"), limit=ECHO),
                "call", calling, "echo", {"count": one, "processes": 1},
            ),
            Measurement(
                _rate(f"pipelined{suffix}", "calls/s", Target(5, "xoscar", at_least=True), limit=ECHO),
                "pipelined", {"count": many, "method": method},
                "echo_pipelined", {"count": many, "processes": 1}, in_flight,
            ),
            Measurement(
                _microseconds(f"group_call{suffix}", Target(0.6, "xoscar"), limit=ECHO_EACH),
                "group_call", {"count": group, "method": method}, "echo", {"count": group, "processes": RANKS},
            ),
            Measurement(
                _rate(f"group_pipelined{suffix}", RANK_CALLS, Target(8, "xoscar", at_least=True), limit=ECHO_EACH),
                "group_pipelined", {"count": groups, "ranks": RANKS, "method": method},
                "echo_pipelined", {"count": groups, "processes": RANKS}, in_flight,
            ),
        ]  # fmt: skip
    large = {"mebibytes": MEBIBYTES, "count": 1 if quick else 3}
    for suffix, method, targets in (("", "numel", [Target(3, LIMIT)]), ("_read", "summed", [])):
        case = Case(BENCH, f"argument_{MEBIBYTES}MiB{suffix}", "ms", 1e3, limit=MEMCPY, targets=targets)
        peers = [peer for peer in contestant.PEERS if peer != "rlinf"]
        found.append(Measurement(case, "argument", {**large, "method": method}, "memcpy", large, peers))
    return found


def remote_measurements(quick: bool) -> list[Measurement]:
    """The workers on another node: everything crosses gRPC."""
    one, many = (50, 200) if quick else (500, 5000)
    group, groups = (50, 100) if quick else (300, 1000)
    echo = {"count": one}
    target = Target(2, LIMIT)
    return [
        Measurement(
            _microseconds("remote_one_call", target, limit=GRPC_ECHO),
            "call", {"count": one, "method": "ping"}, "grpc_echo", echo, (),
        ),
        Measurement(
            _rate("remote_pipelined", "calls/s", limit=GRPC_ECHO),
            "pipelined", {"count": many, "method": "ping"}, "grpc_echo_pipelined", {"count": many}, (),
        ),
        Measurement(
            _microseconds("remote_group_call", target, limit=GRPC_ECHO),
            "group_call", {"count": group, "method": "ping"}, "grpc_echo", echo, (),
        ),
        Measurement(
            _rate("remote_group_pipelined", RANK_CALLS, limit=GRPC_ECHO),
            "group_pipelined", {"count": groups, "ranks": RANKS, "method": "ping"},
            "grpc_echo_pipelined", {"count": groups}, (),
        ),
    ]  # fmt: skip


def run(measurements: Sequence[Measurement], contestants: Mapping[str, Contestant], options: Options) -> None:
    """Starts the contestants' workers and prints a row for each case; a contestant that fails a work is left out."""
    if not measurements:
        return
    started = {}
    for name, each in contestants.items():
        try:
            if name != LIMIT:
                each.ask("cold", workers=RANKS, method="ping_def")
            started[name] = each
        except ContestantError as error:
            _leave_out(name, error)
    for measurement in measurements:
        measures = _measures(measurement, started, options)
        measure.print_row(
            {
                **measurement.case.row(measure.alternate(options.rounds, measures, warm_up=not options.quick)),
                "loop": options.loop,
            }
        )


def _measures(
    measurement: Measurement, contestants: Mapping[str, Contestant], options: Options
) -> dict[str, Callable[[], Sequence[float]]]:
    found: dict[str, Callable[[], Sequence[float]]] = {}
    for name, each in contestants.items():
        work, arguments = measurement.work, measurement.arguments
        if name == LIMIT:
            if measurement.limit is None:
                continue
            work, arguments = measurement.limit, measurement.limit_arguments or {}
        elif name != OURS and name not in measurement.peers:
            continue
        try:
            each.ask(work, **{**arguments, "count": min(20, arguments["count"])})
        except ContestantError as error:
            _leave_out(name, error)
            continue
        found[name] = functools.partial(each.ask, work, **arguments)
    return found


def _leave_out(name: str, error: ContestantError) -> None:
    """A peer that fails is not compared; ours and the limits must not fail."""
    if name in (OURS, LIMIT):
        raise error
    print(error, file=sys.stderr)


def main(arguments: list[str] | None = None) -> None:
    options = parse("What a call costs.", rounds=5, arguments=arguments)
    local = [each for each in local_measurements(options.quick) if options.wants(each.case.name)]
    remote = [each for each in remote_measurements(options.quick) if options.wants(each.case.name)]
    if local:
        with contextlib.ExitStack() as stack:
            contestants = {OURS: stack.enter_context(contestant.ours("--loop", options.loop))}
            for name in options.peers:
                contestants[name] = stack.enter_context(contestant.peer(name, options.peers_dir))
            contestants[LIMIT] = stack.enter_context(contestant.limits())
            run(local, contestants, options)
    if remote:
        with contestant.ours("--nodes", "2", "--loop", options.loop) as near, contestant.limits() as limits:
            run(remote, {OURS: near, LIMIT: limits}, options)


if __name__ == "__main__":
    main()
