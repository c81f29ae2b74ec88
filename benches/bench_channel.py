"""Channel throughput: small items, tensors, many workers, many keys, between nodes; samples of an experience.

python -m benches.bench_channel [--peer rlinf] [--peer ray] [--quick]
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

from .contestant import ContestantError
from .exchange import MEBI, MEMCPY, copies, run, start, start_nodes
from .measure import ITSELF, LIMIT, Case, Target
from .options import parse
from .session import Measurement

BENCH: Final = "channel"
QUEUE: Final = "a bare queue over UNIX sockets"
PAIRS: Final = 4
KEYS: Final = 1000
IN_FLIGHT: Final = 16


def _items(name: str, *targets: Target, limit: str, note: str | None = None) -> Case:
    return Case(BENCH, name, "items/s", more_is_better=True, limit=limit, targets=targets, note=note)


def same_node(quick: bool) -> list[Measurement]:
    """Return measurements of producers, consumers and the channel on one machine."""
    few, many = (300, 2000) if quick else (4000, 40_000)
    slow = 200
    found = []
    for suffix, way in (("", "async"), ("_def", "def")):
        peers = ["ray", "rlinf"]
        both: dict[str, Any] = {"way": way}
        found += [
            Measurement(
                _items(f"small{suffix}", Target(25, "ray", at_least=True), limit=QUEUE),
                "relay", {**both, "count": few},
                ("queue", {"count": few, "pairs": 1, "in_flight": 1}), peers=peers, peer_count=slow,
            ),
            Measurement(
                _items(f"small_{IN_FLIGHT}{suffix}", Target(50_000, ITSELF, at_least=True), limit=QUEUE),
                "relay", {**both, "count": many, "in_flight": IN_FLIGHT},
                ("queue", {"count": many, "pairs": 1, "in_flight": IN_FLIGHT}), peers=peers, peer_count=slow,
            ),
        ]  # fmt: skip
    found.append(
        Measurement(
            _items("small_loop", limit=QUEUE, note="`async for`"),
            "relay", {"count": many, "in_flight": IN_FLIGHT, "way": "loop"},
            ("queue", {"count": many, "pairs": 1, "in_flight": IN_FLIGHT}), peers=(),
        )
    )  # fmt: skip
    tensors = {"count": 20 if quick else 400, "size": MEBI}
    for name, in_flight in (("tensors_1MiB", 1), (f"tensors_1MiB_{IN_FLIGHT}", IN_FLIGHT)):
        case = Case(BENCH, name, "GB/s", 1e-9, True, limit=MEMCPY, targets=[Target(0.5, LIMIT, at_least=True)])
        arguments = {**tensors, "in_flight": in_flight}
        found.append(
            Measurement(case, "relay_bandwidth", arguments, copies(MEBI), peers=["ray", "rlinf"], peer_count=30)
        )
    return found


def experience(quick: bool) -> list[Measurement]:
    """Return measurements of samples put into an experience and taken 64 at a time, in memory only and with a file."""
    found = []
    for suffix, way in (("", "experience"), ("_durable", "durable")):
        small, large = (640, 64) if quick else (12_800, 640)
        note = f"takes of 64 samples, {IN_FLIGHT} puts in flight"
        arguments = {"way": way, "in_flight": IN_FLIGHT}
        found += [
            Measurement(
                _items(f"experience{suffix}", limit=QUEUE, note=note), "relay", {**arguments, "count": small},
                ("queue", {"count": small, "pairs": 1, "in_flight": IN_FLIGHT}), peers=(),
            ),
            Measurement(
                Case(BENCH, f"experience{suffix}_1MiB", "GB/s", 1e-9, True, limit=MEMCPY, note=note),
                "relay_bandwidth", {**arguments, "count": large, "size": MEBI}, copies(MEBI), peers=(),
            ),
        ]  # fmt: skip
    return found


def many_workers(quick: bool) -> list[Measurement]:
    """Return measurements of several producers and consumers on one channel."""
    count = 500 if quick else 10_000
    found = []
    for name, in_flight in (("many", 1), (f"many_{IN_FLIGHT}", IN_FLIGHT)):
        items = count if in_flight > 1 else count // 5
        note = f"{PAIRS} producers and {PAIRS} consumers"
        found.append(
            Measurement(
                _items(name, limit=QUEUE, note=note),
                "relay", {"count": items, "pairs": PAIRS, "in_flight": in_flight},
                ("queue", {"count": items, "pairs": PAIRS, "in_flight": in_flight}), peers=["ray"], peer_count=100,
            )
        )  # fmt: skip
    return found


def many_keys(quick: bool) -> list[Measurement]:
    """Return measurements of one producer and one consumer that cycle through a thousand keys."""
    count = 2000 if quick else 20_000
    return [
        Measurement(
            _items(f"keys_{KEYS}", limit=QUEUE, note=f"{KEYS} keys in turn, {IN_FLIGHT} in flight"),
            "relay", {"count": count, "keys": KEYS, "in_flight": IN_FLIGHT},
            ("queue", {"count": count, "pairs": 1, "in_flight": IN_FLIGHT}), peers=["rlinf"], peer_count=100,
        )
    ]  # fmt: skip


def two_nodes(quick: bool) -> list[Measurement]:
    """Return measurements of a producer beside the channel, and a consumer on another local node."""
    few, many = (100, 1000) if quick else (1000, 10_000)
    echo = "echoes over a bare grpc.aio stream"
    return [
        Measurement(
            _items("two_nodes_small", limit=echo), "relay", {"count": few},
            ("grpc_echo_rate", {"count": few}), peers=(),
        ),
        Measurement(
            _items(f"two_nodes_small_{IN_FLIGHT}", limit=echo), "relay", {"count": many, "in_flight": IN_FLIGHT},
            ("grpc_echo_pipelined", {"count": few}), peers=(),
        ),
        Measurement(
            Case(BENCH, "two_nodes_tensors_1MiB", "GB/s", 1e-9, True, limit="a raw TCP socket"),
            "relay_bandwidth", {"count": 20 if quick else 100, "size": MEBI, "in_flight": IN_FLIGHT},
            ("wire_bandwidth", {"kind": "tcp", "size": MEBI, "count": 50}), peers=(),
        ),
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    options = parse("What a channel carries.", rounds=5, arguments=arguments)
    quick = options.quick
    try:
        pair = functools.partial(start, options=options, workers=2)
        run([*same_node(quick), *many_keys(quick), *experience(quick)], pair, options)
        crowd = functools.partial(start, options=options, workers=2 * PAIRS)
        run(many_workers(quick), crowd, options.beside("ray"))
        run(two_nodes(quick), functools.partial(start_nodes, options=options, workers=2), options.beside())
    except ContestantError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
