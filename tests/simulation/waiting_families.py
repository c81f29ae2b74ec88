"""Families of programs about what happens a second time: cancels during a cleanup, waits for several works, outages."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tests.simulation.families import CREW
from tests.simulation.step import Step

VISITOR: Final = "a"
"""Group of one rank that calls the crew, and may be closed before it."""

CALL_TIMEOUT_S: Final = 4.0
"""Deadline of all calls where calls are given up: also of the call whose method makes the other one."""

Draw = Callable[[random.Random, int, int], list[Step]]
"""Its last arguments are the numbers of the crew's ranks and of the nodes."""


def is_of_waiting(seed: int) -> bool:
    """True for a twentieth of the seeds."""
    return seed % 40 in (26, 28)


def draw(rng: random.Random) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]], str | None, list[Step]]:
    """Draw the families of a program, the nodes of the ranks of its groups, whether ranks come back, and the steps."""
    names = rng.choice((("cleanups",), ("cleanups",), ("combinations",), ("combinations",), ("outages",), ("outages",)))
    nodes = rng.choice((2, 3)) if names == ("outages",) else rng.choice((1, 2, 3))
    size = max(nodes, rng.choice((2, 3, 4)))
    crew = tuple(sorted((*range(nodes), *(rng.randrange(nodes) for _ in range(size - nodes)))))
    steps = [step for name in names for step in WAITING_FAMILIES[name](rng, size, nodes)]
    restart = None if "outages" in names else rng.choice((None, "rank"))
    return names, {CREW: crew, VISITOR: (rng.randrange(nodes),)}, restart, steps


def _step(at: float, kind: str, *facts: object) -> Step:
    return Step(round(at, 4), kind, facts)


def _cleanups(rng: random.Random, size: int, nodes: int) -> list[Step]:
    """Calls that are given up, and whose cleanup takes a while in which a second word comes, of whatever kind."""
    del nodes
    found, at = [], 0.0
    for _ in range(rng.choice((2, 4, 6))):
        rank = rng.randrange(size)
        caller = rng.choice(("driver", (VISITOR, 0), *((CREW, other) for other in range(size) if other != rank)))
        method = rng.choice(("tidy", "tidy", "tidy_beside", "tidy_beside", "tidy_stream"))
        first = rng.choice(("cancel", "cancel twice", "task", "timeout", "deadline", "nothing"))
        if first == "nothing" and rng.random() < 0.6:
            method = "tidy_stream"
        clean_s = rng.choice((0.4, 1.0, 1.6))
        found.append(_step(at, "k_tidy", caller, rank, method, first, clean_s))
        later = at + (CALL_TIMEOUT_S if first == "deadline" else 0.1) + rng.choice((0.0, 0.05, 0.3))
        second = rng.choice(("none", "kill", "kill", "sever", "sever of it", "leave", "restart", "close"))
        if second in ("kill", "sever", "restart") and caller != "driver":
            found.append(_step(later, second, caller, *(("close",) if second == "sever" else ())))
        elif second == "sever of it":
            found.append(_step(later, "sever", (CREW, rank), rng.choice(("shutdown", "close"))))
        elif second == "leave" and caller == (VISITOR, 0):
            found.append(_step(later, "k_leave"))
        elif rng.random() < {"close": 0.5}.get(second, 0.7 if first == "nothing" else 0.0):
            found.append(_step(later, "h_close"))
            break  # nobody is left to be called
        at += rng.choice((0.05, 3.0))
    return found


Part = tuple[object, ...]


_PARTS: Final = (
    "call", "call of all", "any", "fails", "fails", "late get", "late recv", "item", "send", "stays",
)  # fmt: skip
"""Kinds of works; others wrap one of them."""


def _combinations(rng: random.Random, size: int, nodes: int) -> list[Step]:
    """Waits for several works at once, of which some fail, some never end, and some cannot be cancelled."""
    del nodes
    found = []
    for _ in range(rng.choice((4, 6, 8))):
        who = rng.choice(("driver", "driver", "thread", "rank", "rank", "blocking rank"))
        rank = rng.randrange(size)
        parts = tuple(_part(rng, size, rank, 0) for _ in range(rng.choice((1, 2, 3, 5))))
        how = rng.choice(("all", "all", "all", "then", "twice"))
        # A wait that nothing fails, and of which a part never ends, is given up.
        patience = rng.choice((None, None, 0.0, 0.1, 0.5))
        if patience is None and not any(fails_in(part) for part in parts) and any(is_endless(part) for part in parts):
            patience = 0.5
        found.append(_step(rng.uniform(0, 0.3), "c_wait", who, rank, parts, how, patience))
    if rng.random() < 0.3:
        found.append(_step(rng.uniform(0, 0.5), "kill", (CREW, rng.randrange(size))))
    return found


def _part(rng: random.Random, size: int, rank: int, depth: int) -> Part:
    seconds = rng.choice((0.0, 0.05, 0.2, 1.0))
    if depth < 2 and rng.random() < 0.3:
        return rng.choice(("then", "then", "then fails", "nested")), _part(rng, size, rank, depth + 1)
    kind = rng.choice(
        ("call", "call of all", "any", "fails", "fails", "late get", "late recv", "item", "send", "stays")
    )
    return kind, rng.randrange(size), seconds


def fails_in(part: Part) -> float | None:
    """Seconds until a part fails; None where it does not."""
    kind, of, *more = part
    if kind in ("fails", "late get", "late recv"):
        return float(str(more[0]))
    if kind in ("then", "then fails", "nested"):
        assert isinstance(of, tuple)
        fails = fails_in(of)
        return ends_in(of) if fails is None and kind == "then fails" else fails
    return None


def ends_in(part: Part) -> float | None:
    """Seconds until a part ends; None where it never does."""
    kind, of, *more = part
    if kind in ("then", "then fails", "nested"):
        assert isinstance(of, tuple)
        return ends_in(of)
    return None if kind == "stays" else float(str(more[0]))


def is_endless(part: Part) -> bool:
    return ends_in(part) is None


WAY_S: Final = 6.0
"""Seconds beyond an outage, and beyond what TCP waits after it, in which nodes find each other again."""


def _outages(rng: random.Random, size: int, nodes: int) -> list[Step]:
    """The same two nodes lose each other again and again, in one direction or both, among calls and messages.

    Each outage is shorter than a lease, and ends long enough before the next one for the nodes to hear each other.
    """
    found, at = [], 0.2
    one, other = rng.sample(range(nodes), 2)
    for _ in range(rng.choice((2, 3, 4))):
        way = rng.choice(("both", "both", "there", "back", "stand"))
        if rng.random() < 0.3:
            one, other = other, one
        seconds = rng.choice((0.05, 3.0, 8.0, 8.0, 8.0))
        found.append(_step(at, "o_cut", one, other, way, seconds))
        for _ in range(rng.choice((1, 2))):
            found.append(_step(at + rng.uniform(-0.1, 2 * seconds), "o_call", *rng.sample(range(size), 2)))
        if rng.random() < 0.5:
            facts = (*rng.sample(range(size), 2), tuple(rng.choice((10, 300_000, 1_500_000)) for _ in range(3)))
            plan = tuple((nbytes, None) for nbytes in facts[2])
            found.append(_step(at + rng.uniform(-0.1, seconds), "t_talk", *facts[:2], plan, (None,)))
        at += 2 * seconds + WAY_S
        found.append(_step(at, "o_call", *rng.sample(range(size), 2)))
        at += rng.choice((0.01, 1.0, 5.0))
    return found


WAITING_FAMILIES: Final[dict[str, Draw]] = {
    "cleanups": _cleanups,
    "combinations": _combinations,
    "outages": _outages,
}
