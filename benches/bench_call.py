"""Latency and throughput of calls: alone, pipelined, to a group, to another node, with a large argument.

    python -m benches.bench_call [--peer ray] [--peer xoscar] [--quick]

Our framework and one peer stay up while the rounds alternate between them; then comes the next peer.
"""

from __future__ import annotations

import functools
import sys
from typing import Final

from . import contestant, session
from .contestant import ContestantError
from .measure import ITSELF, LIMIT, VERSIONS, Case, Target
from .options import Options, parse
from .session import Measurement, Standing

BENCH: Final = "call"
RANKS: Final = 4
MEBIBYTES: Final = 256
RANK_CALLS: Final = "calls x ranks/s"

ECHO: Final = "echo over one UNIX socket"
ECHO_EACH: Final = f"echo over {RANKS} UNIX sockets"
GRPC_ECHO: Final = "echo over a bare grpc.aio stream"
MEMCPY: Final = f"one memcpy of {MEBIBYTES} MiB"


def _microseconds(name: str, *targets: Target, limit: str) -> Case:
    return Case(BENCH, name, "us", 1e6, limit=limit, targets=targets)


def _rate(name: str, unit: str, *targets: Target, limit: str) -> Case:
    return Case(BENCH, name, unit, more_is_better=True, limit=limit, targets=targets)


def _over_named(name: str) -> Case:
    return Case(BENCH, name, "x a named rank", targets=[Target(1.3, ITSELF)])


def _counts(quick: bool) -> tuple[int, int, int, int]:
    """Calls in one round: one by one and in flight, to one worker and to a group.

    There are many short rounds instead of a few long ones, so that other load on the machine affects both sides of a
    ratio.
    """
    return (50, 200, 50, 100) if quick else (300, 5000, 200, 1000)


def local_measurements(quick: bool) -> list[Measurement]:
    """Return measurements of a driver and workers on one machine, with the same targets for both kinds of method."""
    one, many, group, groups = _counts(quick)
    in_flight = [peer for peer in contestant.PEERS if peer != "rlinf"]  # RLinf's handles block
    found = []
    for suffix, method in (("", "ping"), ("_def", "ping_def")):
        calling = {"count": one, "method": method}
        found += [
            Measurement(
                _microseconds(f"one_call{suffix}", Target(0.8, "xoscar"), Target(0.2, "ray"), limit=ECHO),
                "call", calling, ("echo", {"count": one, "processes": 1}),
            ),
            Measurement(
                _rate(f"pipelined{suffix}", "calls/s", Target(5, "xoscar", at_least=True), limit=ECHO),
                "pipelined", {"count": many, "method": method},
                ("echo_pipelined", {"count": many, "processes": 1}), peers=in_flight,
            ),
            Measurement(
                _microseconds(f"group_call{suffix}", Target(0.6, "xoscar"), limit=ECHO_EACH),
                "group_call", {"count": group, "method": method}, ("echo", {"count": group, "processes": RANKS}),
            ),
            Measurement(
                _rate(f"group_pipelined{suffix}", RANK_CALLS, Target(8, "xoscar", at_least=True), limit=ECHO_EACH),
                "group_pipelined", {"count": groups, "ranks": RANKS, "method": method},
                ("echo_pipelined", {"count": groups, "processes": RANKS}), peers=in_flight,
            ),
        ]  # fmt: skip
    found += [
        Measurement(_over_named("any_call"), "any_call", {"count": one}, peers=()),
        Measurement(_over_named("any_call_64"), "any_in_flight", {"count": many, "in_flight": 64}, peers=()),
    ]
    large = {"mebibytes": MEBIBYTES, "count": 1}
    for suffix, method, targets in (("", "numel", [Target(3, LIMIT)]), ("_read", "summed", [])):
        case = Case(BENCH, f"argument_{MEBIBYTES}MiB{suffix}", "ms", 1e3, limit=MEMCPY, targets=targets)
        peers = [peer for peer in contestant.PEERS if peer != "rlinf"]
        found.append(Measurement(case, "argument", {**large, "method": method}, ("memcpy", large), peers=peers))
    return found


def remote_measurements(quick: bool) -> list[Measurement]:
    """Return measurements of workers on another node, where everything crosses gRPC."""
    one, many, group, groups = _counts(quick)
    echo = {"count": one}
    target = Target(2, LIMIT)
    return [
        Measurement(
            _microseconds("remote_one_call", target, limit=GRPC_ECHO),
            "call", {"count": one, "method": "ping"}, ("grpc_echo", echo), peers=(),
        ),
        Measurement(
            _rate("remote_pipelined", "calls/s", limit=GRPC_ECHO),
            "pipelined", {"count": many, "method": "ping"}, ("grpc_echo_pipelined", {"count": many}), peers=(),
        ),
        Measurement(
            _microseconds("remote_group_call", target, limit=GRPC_ECHO),
            "group_call", {"count": group, "method": "ping"}, ("grpc_echo", echo), peers=(),
        ),
        Measurement(
            _rate("remote_group_pipelined", RANK_CALLS, limit=GRPC_ECHO),
            "group_pipelined", {"count": groups, "ranks": RANKS, "method": "ping"},
            ("grpc_echo_pipelined", {"count": groups}), peers=(),
        ),
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    options = parse("What a call costs.", rounds=9, arguments=arguments)
    try:
        local = [each for each in local_measurements(options.quick) if options.wants(each.case.name)]
        if local:
            start = functools.partial(_start, options=options)
            session.print_rows(local, session.beside_each_peer(local, start, options), options)
        remote = [each for each in remote_measurements(options.quick) if options.wants(each.case.name)]
        if remote:
            alone = options.beside()
            start = functools.partial(_start, options=alone, nodes=2)
            session.print_rows(remote, session.beside_each_peer(remote, start, alone), options)
    except ContestantError as error:
        sys.exit(str(error))


def _start(name: str, options: Options, nodes: int = 1) -> Standing:
    cold = ("cold", {"workers": RANKS, "method": "ping_def"})
    if name == LIMIT:
        return Standing(contestant.limits)
    if name in VERSIONS:
        flags = ("--loop", options.loop, "--nodes", str(nodes))
        return Standing(functools.partial(contestant.ours, *flags, checkout=options.checkout(name)), cold)
    return Standing(functools.partial(contestant.peer, name, options.peers_dir), cold)


if __name__ == "__main__":
    main()
