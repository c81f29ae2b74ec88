"""Latency and throughput of sends: 8 bytes to 256 MiB, within a machine, between two, on a GPU; and idle workers.

    python -m benches.bench_send [--peer rlinf] [--peer ray] [--quick]
    python -m benches.bench_send --only two_nodes --only two_hosts      # nodes of this machine; network namespaces

Two workers send each other tensors in turn. The result for large ones is in bytes per second in one direction.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

from . import contestant
from .contestant import ContestantError
from .exchange import KIBI, MEBI, MEMCPY, Hosts, copies, in_words, run, start, start_nodes, up_to
from .measure import BEST, LIMIT, Case, Target
from .options import Options, parse
from .session import Job, Measurement, Standing

BENCH: Final = "send"
ECHO: Final = "echo over one UNIX socket"
GLOO: Final = "a bare Gloo pair"
TCP: Final = "a raw TCP socket"
LARGE: Final = (MEBI, 16 * MEBI, 64 * MEBI, 256 * MEBI)
PEERS: Final = 8
PENDING: Final = 1000


def _round_trip(name: str, *targets: Target, limit: str, beside: dict[str, str] | None = None) -> Case:
    return Case(BENCH, name, "us", 1e6, limit=limit, beside=beside or {}, targets=targets)


def _bandwidth(name: str, *targets: Target, limit: str, beside: dict[str, str] | None = None) -> Case:
    return Case(BENCH, name, "GB/s", 1e-9, True, limit=limit, beside=beside or {}, targets=targets)


def _swaps(size: int, quick: bool) -> dict[str, Any]:
    """Return the number of messages of a size: many small ones, or large ones for a fraction of a second."""
    often = 30 if quick else 300
    return {"size": size, "count": often if size < MEBI else max(2, min(often, 256 * MEBI // size))}


def small(quick: bool) -> list[Measurement]:
    """Return measurements of two workers on one machine, with payloads that fit into a message."""
    found = []
    for name, size, way in (
        ("send_8B", 8, "send"),
        ("send_8B_async", 8, "async"),
        ("send_object", 8, "object"),
        ("send_1KiB", KIBI, "send"),
        ("send_32KiB", 32 * KIBI, "send"),
    ):
        swaps = _swaps(size, quick)
        case = _round_trip(name, *([Target(0.15, "rlinf")] if size == 8 else []), limit=ECHO)
        echo: Job = ("echo", {"size": size, "count": swaps["count"], "processes": 1})
        peers = contestant.PEERS if way == "send" else ["rlinf"]
        found.append(Measurement(case, "swap", {**swaps, "way": way}, echo, peers=peers, peer_count=50))
    return found


def large(quick: bool) -> list[Measurement]:
    """Return measurements of two workers on one machine, with payloads that move at the speed of memory."""
    targets = {MEBI: [Target(4, BEST, at_least=True)], 64 * MEBI: [Target(0.85, LIMIT, at_least=True)]}
    found = []
    for size in up_to(LARGE, quick):
        words, swaps, few = in_words(size), _swaps(size, quick), max(1, min(10, 64 * MEBI // size))
        case = _bandwidth(f"send_{words}", *targets.get(size, ()), limit=MEMCPY)
        found.append(Measurement(case, "bandwidth", swaps, copies(size), peer_count=few))
        if size != 64 * MEBI:
            continue
        case = _bandwidth(f"send_{words}_read", limit=f"{MEMCPY}, then a sum")
        found.append(Measurement(case, "bandwidth", {**swaps, "read": True}, copies(size, read=True), peer_count=few))
        case = _bandwidth(f"send_tensor_{words}", limit=MEMCPY)
        in_place = {**swaps, "way": "in_place"}
        found.append(Measurement(case, "bandwidth", in_place, copies(size), peers=["rlinf"], peer_count=few))
    return found


def two_nodes(where: str, quick: bool) -> list[Measurement]:
    """Return measurements of two workers on two nodes; ``where`` is "two_nodes" (on this machine) or "two_hosts"."""
    beside = {"tcp": TCP}
    found = []
    for size in (8, 32 * KIBI, *up_to(LARGE, quick)):
        swaps = _swaps(size, quick)
        name = f"{where}_send_{in_words(size)}"
        if size < MEBI:
            case, work, wire = _round_trip(name, limit=GLOO, beside=beside), "swap", "wire"
        else:
            targets = [Target(0.9, LIMIT, at_least=True)] if size == 64 * MEBI else []
            case, work, wire = _bandwidth(name, *targets, limit=GLOO, beside=beside), "bandwidth", "wire_bandwidth"
        limit: Job = (wire, {"kind": "gloo", **swaps})
        found.append(Measurement(case, work, swaps, limit, {"tcp": (wire, {"kind": "tcp", **swaps})}, peers=()))
    return found


def one_gpu(quick: bool) -> list[Measurement]:
    """Return measurements of two workers that share a GPU."""
    found = []
    for size in (8, *up_to(LARGE, quick)):
        swaps, name = _swaps(size, quick), f"gpu_send_{in_words(size)}"
        few = max(1, min(50, 64 * MEBI // size))
        if size < MEBI:
            case = Case(BENCH, name, "us", 1e6)
            found.append(Measurement(case, "swap", swaps, peers=["rlinf"], peer_count=few))
        else:
            case = _bandwidth(name, limit="a copy in the GPU's memory")
            limit: Job = ("device_copy", swaps)
            found.append(Measurement(case, "bandwidth", swaps, limit, peers=["rlinf"], peer_count=few))
    return found


def waiting(quick: bool) -> list[Measurement]:
    """Return measurements of a worker with a thousand pending receives from eight peers, and gets on as many keys."""
    found = []
    under = f"{PENDING} recvs from {PEERS} workers and {PENDING} gets on as many keys"
    for name, filling in (("loop_delay_pending", False), ("loop_delay_filling", True)):
        case = Case(
            BENCH, name, "us", 1e6, limit="the same of an idle loop",
            note=f"p99 of how late timers of 1 ms are in a worker with {under} {'coming in' if filling else 'waiting'}",
        )  # fmt: skip
        late = {"peers": PEERS, "pending": PENDING, "rounds": 1 if quick else 3, "filling": filling}
        found.append(Measurement(case, "late", late, ("late", {"count": 300}), peers=()))
    return found


def main(arguments: list[str] | None = None) -> None:
    options = parse("What it costs to send.", rounds=7, arguments=arguments)
    quick, alone = options.quick, options.beside()
    try:
        run([*small(quick), *large(quick)], functools.partial(start, options=options, workers=2), options)
        run(waiting(quick), functools.partial(start, options=options, workers=1 + PEERS), alone)
        run(two_nodes("two_nodes", quick), functools.partial(start_nodes, options=options, workers=2), alone)
        _run_two_hosts(alone)
        _run_gpu(options.beside("rlinf"))
    except ContestantError as error:
        sys.exit(str(error))


def _run_two_hosts(options: Options) -> None:
    measurements = two_nodes("two_hosts", options.quick)
    if not any(options.wants(each.case.name) for each in measurements):
        return
    try:
        hosts = Hosts(options)
    except RuntimeError as lack:
        print(f"no rows of two hosts: {lack}", file=sys.stderr)
        return
    with hosts:
        run(measurements, lambda name: hosts.start(name, ("start", {"workers": 2})), options)


def _run_gpu(options: Options) -> None:
    measurements = one_gpu(options.quick)
    if not any(options.wants(each.case.name) for each in measurements):
        return
    with contestant.limits() as limits:
        if not limits.ask("gpus")[0]:
            print("no rows of a GPU: torch finds none on this machine", file=sys.stderr)
            return

    def starting(name: str) -> Standing:
        return start(name, options, 2, *(() if name == LIMIT else ("--gpu",)))

    run(measurements, starting, options)


if __name__ == "__main__":
    main()
