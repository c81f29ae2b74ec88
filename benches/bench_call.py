"""What a call costs: alone, in flight with others, to a group, to another node, with a large argument.

    python -m benches.bench_call [--peer ray] [--peer xoscar] [--quick]

Ours and one peer are started and stay; the rounds go from one to the other and back.  Then comes the next peer.
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
from .measure import LIMIT, OURS, Case, Round, Target
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


def _counts(quick: bool) -> tuple[int, int, int, int]:
    """Calls in one round: one by one and in flight, to one worker and to a group.

    Many short rounds and not a few long ones: then what else happens on the machine falls on both sides of a ratio.
    """
    return (50, 200, 50, 100) if quick else (300, 5000, 200, 1000)


def local_measurements(quick: bool) -> list[Measurement]:
    """Driver and workers on one machine; the targets of one call and of a group hold for both kinds of method."""
    one, many, group, groups = _counts(quick)
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
    large = {"mebibytes": MEBIBYTES, "count": 1}
    for suffix, method, targets in (("", "numel", [Target(3, LIMIT)]), ("_read", "summed", [])):
        case = Case(BENCH, f"argument_{MEBIBYTES}MiB{suffix}", "ms", 1e3, limit=MEMCPY, targets=targets)
        peers = [peer for peer in contestant.PEERS if peer != "rlinf"]
        found.append(Measurement(case, "argument", {**large, "method": method}, "memcpy", large, peers))
    return found


def remote_measurements(quick: bool) -> list[Measurement]:
    """The workers on another node: everything crosses gRPC."""
    one, many, group, groups = _counts(quick)
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


def run(
    measurements: Sequence[Measurement], contestants: Mapping[str, Contestant], options: Options
) -> dict[str, list[Round]]:
    """Starts the contestants' workers and measures everything; rounds by case."""
    started = {}
    for name, each in contestants.items():
        try:
            if name != LIMIT:
                each.ask("cold", workers=RANKS, method="ping_def")
            started[name] = each
        except ContestantError as error:
            _leave_out(name, error)
    return {
        measurement.case.name: measure.alternate(
            options.rounds, _measures(measurement, started, options), warm_up=not options.quick
        )
        for measurement in measurements
    }


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
        few = {**arguments, "count": min(20, arguments["count"])}
        if _samples(each, work, few):
            found[name] = functools.partial(_samples, each, work, arguments)
    return found


def _samples(each: Contestant, work: str, arguments: Mapping[str, Any]) -> Sequence[float]:
    try:
        samples: list[float] = each.ask(work, **arguments)
    except ContestantError as error:
        _leave_out(each.name, error)
        return []
    return samples


def _leave_out(name: str, error: ContestantError) -> None:
    """A peer that fails is not compared; ours and the limits must not fail."""
    if name in (OURS, LIMIT):
        raise error
    print(error, file=sys.stderr)


def _together(sessions: Sequence[Mapping[str, list[Round]]]) -> dict[str, list[Round]]:
    return {case: [measured for session in sessions for measured in session[case]] for case in sessions[0]}


def main(arguments: list[str] | None = None) -> None:
    options = parse("What a call costs.", rounds=9, arguments=arguments)
    try:
        local = [each for each in local_measurements(options.quick) if options.wants(each.case.name)]
        if local:
            _print(local, _together([_run_beside(local, peer, options) for peer in options.peers or [None]]), options)
        remote = [each for each in remote_measurements(options.quick) if options.wants(each.case.name)]
        if remote:
            with contestant.ours("--nodes", "2", "--loop", options.loop) as near, contestant.limits() as limits:
                _print(remote, run(remote, {OURS: near, LIMIT: limits}, options), options)
    except ContestantError as error:
        sys.exit(str(error))


def _run_beside(measurements: Sequence[Measurement], peer: str | None, options: Options) -> dict[str, list[Round]]:
    """A session with one peer, or with none: another one, though idle, would take its share of the machine."""
    with contextlib.ExitStack() as stack:
        contestants = {OURS: stack.enter_context(contestant.ours("--loop", options.loop))}
        if peer is not None:
            contestants[peer] = stack.enter_context(contestant.peer(peer, options.peers_dir))
        contestants[LIMIT] = stack.enter_context(contestant.limits())
        return run(measurements, contestants, options)


def _print(measurements: Sequence[Measurement], rounds: Mapping[str, list[Round]], options: Options) -> None:
    for measurement in measurements:
        case = measurement.case
        measure.print_row({**case.row(rounds[case.name]), "loop": options.loop})


if __name__ == "__main__":
    main()
