"""Broadcast throughput from one worker to four, on its machine and on another node.

    python -m benches.bench_broadcast [--peer rlinf] [--peer ray] [--quick]

A broadcast ends when its last receiver has the tensor.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

from .contestant import ContestantError
from .exchange import KIBI, MEBI, MEMCPY, copies, in_words, run, start, start_nodes, up_to
from .measure import LIMIT, Case, Target
from .options import parse
from .session import Job, Measurement

BENCH: Final = "broadcast"
RECEIVERS: Final = 4
SIZES: Final = (8, 32 * KIBI, MEBI, 64 * MEBI, 256 * MEBI)
EACH: Final = f"to each of {RECEIVERS} receivers"


def _count(size: int, quick: bool) -> int:
    return max(1, min(20 if quick else 200, 256 * MEBI // size))


def _case(name: str, size: int, *targets: Target, limit: str) -> Case:
    if size < MEBI:
        return Case(BENCH, name, "us", 1e6, limit=limit, targets=targets)
    return Case(BENCH, name, "GB/s", 1e-9, True, limit=limit, targets=targets, note=EACH)


def same_node(quick: bool) -> list[Measurement]:
    found = []
    for size in up_to(SIZES, quick):
        spread: dict[str, Any] = {"size": size, "count": _count(size, quick), "receivers": RECEIVERS}
        few = max(1, min(20, 64 * MEBI // size))
        name = f"broadcast_{in_words(size)}"
        if size < MEBI:
            echo: Job = ("echo", {"size": size, "count": spread["count"], "processes": RECEIVERS})
            case = _case(name, size, limit=f"echo over {RECEIVERS} UNIX sockets")
            found.append(Measurement(case, "spread", spread, echo, peer_count=few))
        else:
            targets = [Target(0.33, LIMIT, at_least=True)] if size == 256 * MEBI else []
            case = _case(name, size, *targets, limit=MEMCPY)
            found.append(Measurement(case, "spread_bandwidth", spread, copies(size), peer_count=few))
    return found


def two_nodes(quick: bool) -> list[Measurement]:
    """Return measurements with the source on one of two local nodes, and its receivers on the other."""
    found = []
    for size in up_to(SIZES, quick):
        name = f"two_nodes_broadcast_{in_words(size)}"
        spread: dict[str, Any] = {"size": size, "count": min(50, _count(size, quick)), "receivers": RECEIVERS}
        wire = {"kind": "tcp", "size": size, "count": spread["count"]}
        if size < MEBI:
            case = _case(name, size, limit="echo over a raw TCP socket")
            found.append(Measurement(case, "spread", spread, ("wire", wire), peers=()))
        else:
            case = _case(name, size, limit="one transfer over a raw TCP socket")
            found.append(Measurement(case, "spread_bandwidth", spread, ("wire_bandwidth", wire), peers=()))
    return found


def main(arguments: list[str] | None = None) -> None:
    options = parse("What it costs to broadcast.", rounds=5, arguments=arguments)
    workers = 1 + RECEIVERS
    try:
        run(same_node(options.quick), functools.partial(start, options=options, workers=workers), options)
        near_and_far = functools.partial(start_nodes, options=options, workers=workers)
        run(two_nodes(options.quick), near_and_far, options.beside())
    except ContestantError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
