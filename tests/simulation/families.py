"""Families of programs: each puts one part of the public API through its paces, on a group of its own, ``crew``."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tests.simulation.step import Step

CREW: Final = "crew"

Draw = Callable[[random.Random, float, int], list[Step]]


def is_of_a_family(seed: int) -> bool:
    """True for three seeds of ten; all other seeds keep the programs that they had before there were families."""
    return seed // 10 % 2 == 1 and seed % 10 not in (0, 4, 7, 9)


def draw(rng: random.Random, spread: float, nodes: int, size: int) -> tuple[tuple[str, ...], bool, list[Step]]:
    """Draw the families of a program, whether it has no faults, and the steps."""
    count = min(len(FAMILIES), rng.choice((1, 1, 2)))
    names = tuple(sorted(rng.sample(sorted(FAMILIES), count)))
    steps = [step for name in names for step in FAMILIES[name](rng, spread, size)]
    faults = rng.choice(("none", "none", "deaths", "network", "both"))
    if faults in ("deaths", "both"):
        for _ in range(rng.choice((1, 2))):
            steps.append(_at(rng, spread, "kill", (CREW, rng.randrange(size))))
    if faults in ("network", "both"):
        steps += [_disturbance(rng, spread, nodes, size) for _ in range(rng.choice((1, 2, 3)))]
    return names, faults == "none", [*steps, *_later(names, spread, size, str(steps))]


def _later(names: tuple[str, ...], spread: float, size: int, seed: str) -> list[Step]:
    """Draw steps that came to families later, and leave all that is drawn otherwise as it was."""
    rng = random.Random(seed)
    found = []
    if "queues" in names:
        for _ in range(rng.choice((0, 1, 2))):
            facts = (_someone(rng, size), rng.randrange(3), rng.choice((3, 6)), rng.randrange(1 << 20))
            found.append(_at(rng, spread, "q_waver", *facts))
    if "locks" in names:
        for _ in range(rng.choice((0, 1, 2))):
            rank, devices = rng.choice((0, *range(2, size))), tuple(sorted(rng.sample(range(3), rng.choice((1, 2)))))
            found.append(_at(rng, spread, "l_waver", rank, devices, 10, rng.randrange(1 << 20)))
    if "methods" in names:
        for _ in range(rng.choice((0, 1, 1, 2))):
            found.append(_at(rng, spread, "m_crowd", rng.randrange(1 << 20)))
    if "locks" in names:
        for _ in range(rng.choice((0, 1, 1))):
            rank, devices = rng.choice((0, *range(2, size))), tuple(sorted(rng.sample(range(3), rng.choice((1, 2)))))
            found.append(_at(rng, spread, "l_pair", rank, devices))
    if "verdicts" not in names:  # which last as long as they like
        if "locks" in names:
            found.append(Step(round(spread + 30.0, 4), "l_behind"))
        if "methods" in names:
            found.append(Step(round(spread + 30.0, 4), "m_silent", (rng.randrange(size), rng.choice((0.2, 0.6)))))
        if "messages" in names:
            facts = (*rng.sample(range(size), 2), rng.randrange(1 << 20))
            found.append(Step(round(spread + 45.0, 4), "t_waver", facts))
            found.append(Step(round(spread + 60.0, 4), "t_farewell", (rng.choice((300_000, 1_500_000)),)))
            found.append(
                Step(round(spread + 90.0, 4), "t_bereaved", (*rng.sample(range(size), 2), rng.choice((10, 70_000))))
            )
    return found


def _at(rng: random.Random, spread: float, kind: str, *facts: object) -> Step:
    return Step(round(rng.uniform(0, spread), 4), kind, facts)


def _disturbance(rng: random.Random, spread: float, nodes: int, size: int) -> Step:
    kind, facts = rng.choice(
        (
            ("stop", ((CREW, rng.randrange(size)), rng.choice((0.2, 3.0)))),
            ("sever", ((CREW, rng.randrange(size)), rng.choice(("shutdown", "close")))),
            ("starve", ((CREW, rng.randrange(size)), rng.choice((0.2, 3.0)))),
            ("cut", (rng.randrange(nodes), rng.choice((0.05, 1.0, 4.0)))),
            ("cut_way", (rng.randrange(nodes), rng.randrange(nodes), rng.choice((0.05, 1.0, 4.0)))),
            ("stand", (rng.randrange(nodes), rng.choice((0.05, 1.0, 4.0)))),
        )
    )
    return Step(round(rng.uniform(0, spread), 4), kind, facts)


def _someone(rng: random.Random, size: int) -> object:
    return rng.choice(("driver", *((CREW, rank) for rank in range(size))))


def _queues(rng: random.Random, spread: float, size: int) -> list[Step]:
    """One or two channels with keys and bounds, which many fill and empty in every way that there is."""
    found = []
    for name in rng.choice((("p",), ("p", "q"))):
        maxsize, max_bytes = rng.choice(((0, 0), (1, 0), (3, 0), (0, 3000), (2, 3000)))
        found.append(Step(0.0, "q_open", (name, maxsize, max_bytes, rng.randrange(3), rng.random() < 0.2)))
        keys = rng.choice((("",), ("", 7), (7, "k", 8)))
        for _ in range(rng.choice((3, 5, 8))):
            key, who = rng.choice(keys), _someone(rng, size)
            how = rng.choice(("put", "put", "put", "nowait", "soon"))
            found.append(_at(rng, spread, "q_put", who, name, key, rng.choice((1, 3, 8)), how, rng.random() < 0.5))
        for _ in range(rng.choice((2, 4, 6))):
            key, who = rng.choice(keys), _someone(rng, size)
            how = rng.choice(("get", "nowait", "many", "batch", "some", "drain", "soon", "hasty", "loop", "lease"))
            found.append(_at(rng, spread, "q_take", who, name, key, rng.choice((1, 2, 5)), how, rng.choice((1, 4))))
        if rng.random() < 0.3:
            found += [_at(rng, spread, "cancel", rng.randrange(4)) for _ in range(rng.choice((1, 3)))]
        for _ in range(rng.choice((0, 0, 1, 2))):
            found.append(_at(rng, spread, "q_close", name, rng.random() < 0.4))
    return found


def _streams(rng: random.Random, spread: float, size: int) -> list[Step]:
    """Streams that are read at different speeds, and left in every way that there is."""
    found = []
    for _ in range(rng.choice((2, 3, 5))):
        reader = rng.choice(("driver", "driver", "thread", (CREW, rng.randrange(size))))
        rank = rng.choice((None, *range(size)))
        count, pad = rng.choice((0, 3, 12, 40)), rng.choice((0, 0, 70_000))
        how = rng.choice(("whole", "whole", "break", "close", "aclose", "unread"))
        fails_at = rng.choice((-1, -1, -1, 0, 2, 20))
        eat = rng.choice((0.0, 0.001, 0.02))
        facts = (reader, rank, count if not pad else min(count, 12), pad, rng.choice((0.0, 0.0, 0.003)), fails_at)
        found.append(_at(rng, spread, "s_read", *facts, how, rng.choice((1, 5, 40)), eat))
    if rng.random() < 0.3:
        found += [_at(rng, spread + 0.3, "cancel", rng.randrange(3)) for _ in range(2)]
    return found


def _locks(rng: random.Random, spread: float, size: int) -> list[Step]:
    """Ranks that want some of three devices, one behind the other; some die, some give up, all get them at the end."""
    found = []
    for _ in range(rng.choice((3, 5, 8))):
        devices = tuple(sorted(rng.sample(range(3), rng.choice((1, 1, 2, 3)))))
        seconds, timeout = rng.choice((0.0, 0.01, 0.2, 2.0, 2.0)), rng.choice((None, None, 0.05, 1.0))
        rank, times = rng.randrange(size), rng.choice((1, 1, 2))
        # One that blocks would keep its rank's other holders from going on, and letting go.
        found.append(_at(rng, spread, "l_hold", rank, devices, seconds, timeout, 0 if rank == 1 else times))
    if rng.random() < 0.6:
        found += [_at(rng, spread + 0.1, "cancel", rng.randrange(4)) for _ in range(rng.choice((2, 5)))]
    return [
        *found,
        *(Step(spread + 12.0, "l_hold", (rank, (0, 1, 2), 0.0, None, 0 if rank == 1 else 1)) for rank in range(size)),
    ]


def _methods(rng: random.Random, spread: float, size: int) -> list[Step]:
    """Concurrent methods beside one that blocks, many at once, given up, and that raise."""
    found = []
    for _ in range(rng.choice((2, 4, 6))):
        rank = rng.randrange(size)
        kinds = {
            "m_look": (rank, rng.choice((2.0, 5.0)), rng.choice((1, 4))),
            "m_meet": (rank, rng.choice((2, 5))),
            "m_stay": (rank, rng.choice((0.0, 0.001, 0.3))),
            "m_refuse": (rank,),
        }
        kind = rng.choice(sorted(kinds))
        found.append(_at(rng, spread, kind, *kinds[kind]))
    return found


def _messages(rng: random.Random, spread: float, size: int) -> list[Step]:
    """Conversations with messages that are large or withdrawn, and receives that are given up; broadcasts."""
    found = []
    pairs = [(one, other) for one in range(size) for other in range(size) if one != other]
    for one, other in rng.sample(pairs, min(len(pairs), rng.choice((1, 2, 3)))):
        plan = tuple(
            (rng.choice((10, 100, 70_000, 300_000, 1_500_000)), rng.choice((None, None, None, 0.0, 0.001, 0.05)))
            for _ in range(rng.choice((2, 5, 8)))
        )
        patience = rng.choice(((None,), (None,), (None, 0.001), (0.01, 0.3)))
        found.append(_at(rng, spread, "t_talk", one, other, plan, patience))
    for _ in range(rng.choice((0, 1, 2, 3))):
        found.append(_at(rng, spread, "t_cast", rng.randrange(size), rng.choice((10, 70_000, 300_000, 1_500_000))))
    return found


STANDING: Final = (
    "recv", "blocking recv", "calls", "itself", "broadcast", "locks", "channels", "nobody puts",
    "nobody puts for the driver",
)  # fmt: skip
"""Ways in which a crew stands still for good."""


def _verdicts(rng: random.Random, spread: float, size: int) -> list[Step]:
    """A program that stands still, one that is slow, or both."""
    del size
    stands = ("v_stands", (rng.choice(STANDING),))
    goes_on = ("v_goes_on", (rng.choice(("line", "blocking line", "calls", "channels")), rng.choice((4.0, 30.0, 70.0))))
    # Not the other way round: of waits that take as long as others at their line have taken no word is said.
    found = rng.choice(((stands,), (goes_on,), (stands, goes_on)))
    return [Step(round(number * spread, 4), *each) for number, each in enumerate(found)]


def _hooks(rng: random.Random, spread: float, size: int) -> list[Step]:
    """Deaths soon after each other, calls between them, and now and then the end of the group."""
    at, found = rng.uniform(0, spread), []
    for _ in range(rng.choice((1, 2, 3))):
        found.append(Step(round(at, 4), "kill", ((CREW, rng.randrange(size)),)))
        for _ in range(rng.choice((0, 1, 2))):
            facts = ((CREW, rng.randrange(size)), rng.choice(("def", "async", "again")), 100, rng.choice((1, 3)))
            found.append(Step(round(at + rng.choice((0.0, 0.001, 0.1, 0.3)), 4), "call", facts))
        at += rng.choice((0.01, 0.12, 0.25, 0.4, 3.0))
    if rng.random() < 0.2:
        found.append(Step(round(at, 4), "h_close"))
    elif rng.random() < 0.2:
        found.append(Step(round(at, 4), "h_kill_node", (rng.randrange(3),)))
    return found


_NEEDS: Final = ("call", "call of all", "stream", "get", "put")
_NEEDS_OF_RANKS: Final = ("recv", "blocking recv", "send", "blocking send", "broadcast", "lock")


def is_of_a_loss(seed: int) -> bool:
    """True for one seed of twenty: its program loses a node."""
    return seed % 20 == 5


def draw_loss(rng: random.Random) -> tuple[tuple[int, ...], str | None, list[Step]]:
    """Draw the places of a crew, whether its ranks come back, and the waits that need a node which is lost."""
    places = rng.choice(((0, 1, 2), (0, 0, 1, 2), (0, 1, 1, 2, 2), (0, 1, 2, 2)))
    restart = rng.choice((None, None, "rank", "group"))
    node = rng.choice((1, 2))
    how = rng.choice(("kill", "kill", "cut", "stand"))
    lost = [rank for rank, of in enumerate(places) if of == node]
    others = ["driver", *(rank for rank, of in enumerate(places) if of != node)]
    when = rng.choice((0.2, 1.0, 3.0))
    found = [Step(0.0, "n_hold", (rank,)) for rank in lost]
    if restart is None and how == "kill" and when > 0.2:
        # A fourth node, of no rank, stands still, and another one has told node 0 that it does not reach it.  Node 0
        # waits for its answer until its own lease is over, and loses the first node meanwhile.
        when = 18.2
        found += [Step(0.5, "cut_pair", (3 - node, 3, 60.0)), Step(4.5, "stand", (3, 1000.0))]
    for _ in range(rng.choice((2, 4, 6))):
        who = rng.choice(others)
        kind = rng.choice(_NEEDS if who == "driver" else (*_NEEDS, *_NEEDS_OF_RANKS))
        kind = "recv" if restart and kind == "blocking recv" else kind  # which waits for who comes back, and blocks all
        # Those who begin a wait for ranks that come back wait for the new ones.
        is_late = restart is None and kind != "broadcast" and rng.random() < 0.3
        at = when + rng.uniform(30, 60) if is_late else rng.uniform(0.1, when)
        found.append(Step(round(at, 4), "n_need", (kind, who, rng.choice(lost))))
    if restart:  # behind a blocking send a wait begins once the ranks are back, which nobody then serves
        waits = sorted(found, key=lambda step: -step.at)
        blocked = {step.facts[1]: step.at for step in waits if step.facts[0] == "blocking send"}
        found = [step for step in found if step.kind == "n_hold" or step.at <= blocked.get(step.facts[1], step.at)]
    return places, restart, [*found, Step(when, "n_lose", (node, how))]


def is_of_an_experience(seed: int) -> bool:
    """True for one seed of twenty, of those that have no family and find no known defect."""
    return seed % 40 in (6, 8) and seed > 8


def draw_experience(rng: random.Random) -> tuple[int, tuple[int, ...], str | None, list[Step]]:
    """Draw the nodes, the places of a crew, whether its ranks come back, and what they do with an experience or two."""
    nodes, spread, size = rng.choice((1, 2, 3)), rng.choice((0.05, 1.0, 8.0)), rng.choice((2, 3, 4))
    places = tuple(sorted(rng.randrange(nodes) for _ in range(size)))
    found = []
    for store in range(rng.choice((1, 1, 2))):
        group = rng.choice((1, 2, 3))
        maxsize, timeout = rng.choice((0, 0, 2 * group, 4 * group)), rng.choice((None, None, 0.3))
        facts = (group, rng.choice((0, 1, 2)), maxsize, timeout, rng.choice(("drop", "take")))
        found.append(Step(0.0, "e_open", facts))
        for _ in range(rng.choice((3, 5, 8))):
            how = rng.choice(("put", "put", "wanted", "wanted", "soon"))
            facts = (store, rng.choice((2, 4, 9)), rng.randrange(2), rng.choice((0, 0, 1, 3)), how, _key(rng))
            found.append(_at(rng, spread, "e_put", _someone(rng, size), *facts))
        for _ in range(rng.choice((2, 4, 6))):
            how = rng.choice(("well", "well", "well", "fail", "long", "part", "stale"))
            facts = (store, rng.choice((1, 3)), rng.choice((1, 1, 2)), how, _key(rng))
            found.append(_at(rng, spread, "e_take", _someone(rng, size), *facts))
        for _ in range(rng.choice((0, 2, 5))):
            found.append(_at(rng, spread, "e_version", store, rng.choice((1, 1, 2)), rng.random() < 0.1))
        if rng.random() < 0.15:
            found.append(_at(rng, spread, "e_close", store, rng.random() < 0.5))
    if rng.random() < 0.4:
        found += [_at(rng, spread, "cancel", rng.randrange(4)) for _ in range(rng.choice((1, 3)))]
    for _ in range(rng.choice((0, 0, 1, 2))):
        found.append(_at(rng, spread, "kill", (CREW, rng.randrange(size))))
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        found.append(_disturbance(rng, spread, nodes, size))
    return nodes, places, rng.choice((None, "rank")), found


def _key(rng: random.Random) -> object:
    return rng.choice((None, None, None, "k"))


HOOKS: Final = ("", "sleep", "raise", "ring", "all")
"""Kinds of hooks of a crew's restarts."""

FAMILIES: Final[dict[str, Draw]] = {
    "hooks": _hooks,
    "locks": _locks,
    "messages": _messages,
    "methods": _methods,
    "queues": _queues,
    "streams": _streams,
    "verdicts": _verdicts,
}
