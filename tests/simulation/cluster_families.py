"""Families of programs that need several nodes and small limits: relayed broadcasts, weights, groups with budgets."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tests.simulation.families import CREW
from tests.simulation.step import Step

TRAINER: Final = "a"
"""Group whose rank 0 publishes weights."""

FAULTS: Final = frozenset((
    "kill", "stop", "starve", "sever", "cut", "cut_pair", "cut_way", "stand", "guest_kill", "h_kill_node", "r_hop_dies",
))  # fmt: skip

Draw = Callable[[random.Random, float, tuple[int, ...]], list[Step]]
"""Its last argument is the node of each rank of the crew."""

CHAINS: Final = "chains"
"""Name of the family that has programs of its own."""


def is_of_a_cluster(seed: int) -> bool:
    """True for a tenth of the seeds, which all have small limits."""
    return seed % 20 in (1, 3)


def is_of_a_chain(seed: int) -> bool:
    """True for a quarter of these, which break the chains of nodes that pass a payload on."""
    return seed % 40 == 21


def draw(rng: random.Random, spread: float) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]], list[Step]]:
    """Draw the families of a program, the nodes of the ranks of its groups, and the steps."""
    names = tuple(sorted(rng.sample(sorted(CLUSTER_FAMILIES), rng.choice((1, 1, 2)))))
    size = rng.choice((3, 4, 5, 6))
    # Every node has a rank: a relay needs receivers on two other nodes.
    nodes = min(size, rng.choice((3, 3, 4)))
    crew = tuple(sorted((*range(nodes), *(rng.randrange(nodes) for _ in range(size - nodes)))))
    placement = {CREW: crew}
    if "weights" in names:
        placement[TRAINER] = (rng.randrange(nodes),)
    steps = [step for name in names for step in CLUSTER_FAMILIES[name](rng, spread, crew)]
    if rng.random() < 0.3:
        steps += [_fault(rng, rng.uniform(0, spread), crew) for _ in range(rng.choice((1, 2)))]
    return names, placement, steps


def draw_chain(rng: random.Random) -> tuple[dict[str, tuple[int, ...]], list[Step]]:
    """Draw the nodes of the ranks, and weights and broadcasts that pass from node to node while one of these is away.

    A transfer takes milliseconds, which a fault at a random moment misses.  So the faults are there before it begins.
    """
    nodes = rng.choice((3, 4, 4))
    crew = tuple(sorted((*range(nodes), *(rng.randrange(nodes) for _ in range(rng.choice((0, 1, 3)))))))
    trainer = rng.randrange(nodes)
    steps = _chained_weights(rng, crew, trainer)
    for number in range(rng.choice((1, 2, 3))):
        steps += _chained_cast(rng, 100.0 + 60 * number, crew)
    return {CREW: crew, TRAINER: (trainer,)}, [*steps, *_broken_cast(random.Random(str(steps)), crew)]


def _broken_cast(rng: random.Random, crew: tuple[int, ...]) -> list[Step]:
    """A broadcast whose next host dies while pieces go on to it, behind all else: ranks do not have to come back."""
    source, sizes = rng.randrange(len(crew)), rng.choice(((300_000,), (1_000_000,), (90_000, 7, 200_000)))
    at = 620.0  # nodes that earlier broadcasts keep apart are neighbours again
    return [
        _step(at, "r_hop_dies", rng.choice((0.0, 1.0, 1.0))),
        _step(at + 0.1, "r_cast", source, sizes, None, None),
    ]


def _chained_weights(rng: random.Random, crew: tuple[int, ...], trainer: int) -> list[Step]:
    """Versions, one after the other, that begin while a host of a node is stopped, out of reach or dead."""
    versions, pause, numbers = rng.choice((6, 12)), rng.choice((0.1, 0.5)), rng.choice((30_000, 100_000))
    options = (("behind", rng.choice((0, 1, 2))), ("ack_timeout", rng.choice((3.0, 20.0))))
    found = [_step(1.0, "w_train", versions, pause, numbers, options)]
    for rank in range(len(crew)):
        at = rng.choice((0.0, 0.0, 0.0, rng.uniform(1.0, 3.0)))
        found.append(_step(at, "w_follow", rank, numbers, 60, 0.1, ()))
    for _ in range(rng.choice((1, 2, 4))):
        at = 1.0 + rng.uniform(0, versions * pause)
        node = rng.choice([each for each in set(crew) if each != trainer])
        host = (CREW, crew.index(node))
        found.append(_step(at, "stop", host, rng.choice((0.5, 4.0, 12.0))))
        kind = rng.choice(("none", "kill", "next", "cut", "follower", "sever"))
        at += rng.choice((0.2, 1.0, 2.0))
        if kind == "kill":
            found += [_step(at, "kill", host), _step(at + 2.0, "w_follow", host[1], numbers, 20, 0.1, ())]
        elif kind == "next":
            found.append(_step(at, "kill", (CREW, rng.randrange(len(crew)))))
        elif kind == "cut":
            found.append(_step(at, "cut_way", node, rng.randrange(max(crew) + 1), 3.0))
        elif kind == "follower":
            found.append(_step(at, "w_follow", rng.randrange(len(crew)), numbers, 5, 0.1, ()))
        elif kind == "sever":
            found.append(_step(at, "sever", host, "close"))
    return found


def _chained_cast(rng: random.Random, at: float, crew: tuple[int, ...]) -> list[Step]:
    """A broadcast that begins when its last receiver joins; a node that is to pass it on is away by then."""
    source = rng.randrange(len(crew))
    first, *_, last = [node for node in sorted(set(crew)) if node != crew[source]]
    host, late = crew.index(first), len(crew) - 1 - crew[::-1].index(last)
    kind = rng.choice(("stop", "stop", "stall", "kill", "cut", "give up", "short"))
    patience = rng.choice((0.7, 2.0)) if kind == "give up" else None
    sizes = rng.choice(((70_000,), (300_000,), (1_000_000,), (40_000, 60_000)))
    found = [_step(at, "r_cast", source, sizes, source, patience, late)]
    if kind == "cut":
        found.append(_step(at + 0.3, "cut_way", first, last, 12.0))
    elif kind == "short":
        found.append(_step(at + 0.3, "r_short", 5.0))
    else:
        found.append(_step(at + 0.3, "stop", (CREW, host), {"stop": 12.0, "stall": 25.0}.get(kind, 3.0)))
    if kind == "kill":
        found.append(_step(at + rng.choice((0.6, 1.0)), "kill", (CREW, host)))
    return found


def _step(at: float, kind: str, *facts: object) -> Step:
    return Step(round(at, 4), kind, facts)


def _fault(rng: random.Random, at: float, crew: tuple[int, ...]) -> Step:
    rank = (CREW, rng.randrange(len(crew)))
    one, other = rng.sample(range(max(crew) + 1), 2)
    kind, facts = rng.choice(
        (
            ("kill", (rank,)),
            ("kill", (rank,)),
            ("stop", (rank, rng.choice((0.2, 12.0, 25.0)))),
            ("sever", (rank, rng.choice(("shutdown", "close")))),
            ("starve", (rank, 3.0)),
            ("cut_pair", (one, other, rng.choice((1.0, 10.0)))),
            ("cut_way", (one, other, rng.choice((0.05, 10.0, 10.0)))),
            ("cut", (one, 4.0)),
        )
    )
    return _step(at, kind, *facts)


def _relays(rng: random.Random, spread: float, crew: tuple[int, ...]) -> list[Step]:
    """Broadcasts that go from node to node, while a host, the source or the way between two nodes is lost."""
    found = []
    for _ in range(rng.choice((2, 3, 5))):
        at, source = rng.uniform(0, spread), rng.randrange(len(crew))
        sizes = rng.choice(((70_000,), (300_000,), (1_000_000,), (1_000_000,), (40_000, 60_000), (90_000, 7, 200_000)))
        patience = rng.choice((None, None, None, None, 0.0, 0.002, 0.02))
        gives_up = rng.choice((None, rng.randrange(len(crew))))
        found.append(_step(at, "r_cast", source, sizes, gives_up, patience))
        hop = rng.choice([crew.index(node) for node in set(crew) if node != crew[source]])
        later = at + rng.uniform(0.001, 0.04)
        kind = rng.choice(("none", "none", "hop dies", "hop dies", "hop stops", "any"))
        if kind == "hop dies":
            found.append(_step(later, "kill", (CREW, hop)))
        elif kind == "hop stops":
            found.append(_step(later, "stop", (CREW, hop), rng.choice((12.0, 25.0))))
        elif kind == "any":
            found.append(_fault(rng, later, crew))
    for _ in range(rng.choice((0, 1, 3))):
        one, other = rng.randrange(len(crew)), rng.randrange(len(crew))
        if one == other:
            found.append(_step(rng.uniform(0, spread), "r_self", one, rng.choice((10, 300_000))))
        else:
            fits = rng.choice(("fits", "fits", "size", "kind", "object"))
            found.append(_step(rng.uniform(0, spread), "r_tensor", one, other, rng.choice((10, 70_000, 300_000)), fits))
    return found


def _weights(rng: random.Random, spread: float, crew: tuple[int, ...]) -> list[Step]:
    """A trainer, and followers that come late, leave, come back, are stopped or die; a trainer that dies."""
    found, size = [], len(crew)
    options = rng.choice(((), (), (("behind", 0),), (("verify", "sha256"),), (("slots", 4),), (("apply", "map"),)))
    options += (("ack_timeout", rng.choice((3.0, 20.0, 20.0))),)
    numbers = rng.choice((100, 30_000, 300_000))
    pause = rng.choice((0.0, 0.002, 0.02, 0.3))
    found.append(_step(rng.uniform(0, spread), "w_train", rng.choice((3, 8)), pause, numbers, options))
    for rank in range(size):
        for _ in range(rng.choice((1, 1, 2))):
            own = rng.choice(((), (), (("apply", "map"),) if ("apply", "map") in options else ()))
            own += tuple(option for option in options if option[0] == "verify")
            reads = rng.choice((1, 5, 20))
            found.append(
                _step(rng.uniform(0, spread), "w_follow", rank, numbers, reads, rng.choice((0.0, 0.01, 0.1)), own)
            )
    for _ in range(rng.choice((0, 0, 1, 2))):
        found.append(_fault(rng, rng.uniform(0, spread + 0.3), crew))
    if rng.random() < 0.4:  # a node that passes the weights on
        hop, at = crew.index(rng.choice(crew)), rng.uniform(0, spread + 0.3)
        found.append(rng.choice((_step(at, "kill", (CREW, hop)), _step(at, "stop", (CREW, hop), 12.0))))
    if rng.random() < 0.3:
        at = rng.uniform(0, spread + 0.3)
        found.append(_step(at, "kill", (TRAINER, 0)))
        found.append(_step(at + 0.5, "w_train", 3, pause, numbers, options))
        for rank in range(size):
            found.append(_step(at + 1.0, "w_follow", rank, numbers, 3, 0.01, own))
    return found


_HOW: Final = (
    "all",
    "each",
    "each",
    "later",
    "later",
    "again",
    "again",
    "stream",
    "refuse",
    "any",
    "crowd",
    "beside",
    "leave",
)
"""Kinds of calls of guests."""


def _guests(rng: random.Random, spread: float, crew: tuple[int, ...]) -> list[Step]:
    """A group whose restarts are few and whose calls have a deadline, among deaths, closes and calls of all kinds."""
    count = rng.choice((2, 3, 5))
    nodes = tuple(sorted(rng.randrange(max(crew) + 1) for _ in range(count)))
    restart = rng.choice((None, "rank", "rank", "group"))
    order = rng.choice(("group", "rank")) if restart == "rank" else None
    budget = rng.choice(((1, 600.0), (1, 2.0), (1000, 600.0)))
    timeout = rng.choice((0, 1.0, 6.0))
    frail = rng.choice((0, 0, 0, 1, 2, 3))
    found = []
    for _ in range(rng.choice((4, 8, 14))):
        ranks = rng.choice((None, None, *range(count)))
        size = rng.choice((10, 10, 70_000))
        facts = (rng.choice(_HOW), ranks, size, rng.choice((0.0, 0.05, 3.0)))
        found.append(_step(rng.uniform(0, spread), "guest_call", *facts))
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.uniform(0, spread)
        found.append(_step(at, rng.choice(("guest_kill", "guest_kill", "guest_restart")), rng.randrange(count)))
        for _ in range(rng.choice((0, 1, 2))):
            how = rng.choice(("each", "again", "all", "stream", "any"))
            delay = rng.choice((0.0, 0.001, 0.02, 0.3))
            found.append(_step(at + delay, "guest_call", how, None, rng.choice((10, 70_000)), 0.02))
    if rng.random() < 0.3:  # more often than it is started again
        victim, at, gap = rng.randrange(count), rng.uniform(0, spread), rng.choice((0.6, 2.5))
        # The ranks of a group that starts again as a whole have one budget, whichever of them dies.
        step = restart == "group"
        found += [_step(at + gap * number, "guest_kill", (victim + step * number) % count) for number in range(4)]
    for _ in range(rng.choice((0, 1, 3))):
        found.append(_step(rng.uniform(0, spread), "guest_talk", rng.randrange(len(crew)), rng.randrange(count)))
    for _ in range(rng.choice((0, 1, 2))):
        found.append(_step(rng.uniform(0, spread), "look", rng.choice(("status", "why"))))
    if rng.random() < 0.4:
        found += [_step(rng.uniform(0, spread), "cancel", rng.randrange(4)) for _ in range(2)]
    if rng.random() < 0.5:
        found.append(_step(spread * rng.random(), "guest_close"))
    if rng.random() < 0.15:
        found.append(_step(spread * rng.random(), "h_kill_node", rng.randrange(1, max(crew) + 1)))
    own = random.Random(str(found))  # what came later leaves all that is drawn otherwise as it was
    hook_s = own.choice((None, 0.0, 1.0, 1.0)) if restart else None
    if hook_s and own.random() < 0.5:  # it dies again while hooks run
        victim, at = own.randrange(count), own.uniform(0, spread)
        found += [_step(at, "guest_kill", victim), _step(at + own.choice((0.4, 0.8, 1.1)), "guest_kill", victim)]
    if restart and budget[1] == 2.0:  # its restart counts no more when it dies again
        victim = own.randrange(count)
        found += [_step(spread + 4.0 + 3.0 * number, "guest_kill", victim) for number in range(2)]
    if not any(step.kind == "guest_close" for step in found) and (own.random() < 0.6 or order == "rank"):
        found += _end_of_guests(own, spread + 20.0, count, len(crew), order == "rank")
    if restart == "rank" and budget[0] == 1 and frail in (0, 2) and (frail or own.random() < 0.7):
        frail = 2  # its next process fails too, and it is lost while it is away
        found = [step for step in found if step.kind not in ("guest_kill", "guest_restart") or step.facts[0] != 0]
        at = own.uniform(spread, spread + 2.0)
        beside = [rank for rank, node in enumerate(crew) if node == nodes[0]] or [0]
        found += [_step(at + 0.02, "guest_talk", rank, 0) for rank in (own.choice(beside), own.randrange(len(crew)))]
        found.append(_step(at, "guest_kill", 0))
    if restart == "rank" and count > 1 and not frail and budget != (1, 600.0):
        facts = (own.randrange(len(crew)), *own.sample(range(count), 2))
        found.append(_step(spread + 15.0, "guest_meet", *facts))
    return [_step(0.0, "guest_open", nodes, restart, order, budget, timeout, frail, hook_s), *found]


def _end_of_guests(rng: random.Random, at: float, count: int, size: int, by_rank: bool) -> list[Step]:
    """Their group is closed soon after a rank has died, while others listen to that one.

    Where ranks have their own order, a call has left for the other ranks by then, and waits for the one that is away.
    """
    victim = rng.randrange(count)
    found = [_step(at, rng.choice(("guest_kill", "guest_kill", "guest_restart")), victim)]
    for _ in range(rng.choice((0, 1, 2))):
        found.append(_step(at + 0.02, "guest_talk", rng.randrange(size), victim))
    if by_rank:
        how = ("all", "each", "stream")[victim % 3]  # not drawn: the moment of the close stays as it was
        found.append(_step(at + 0.025, "guest_call", how, None, 10, 1.0))
    return [*found, _step(at + rng.choice((0.03, 0.08, 0.12, 0.2)), "guest_close")]


def _looks(rng: random.Random, spread: float, crew: tuple[int, ...]) -> list[Step]:
    """The state of the run, while its ranks wait for locks, items, answers and each other."""
    size, found = len(crew), [_step(0.0, "q_open", "p", rng.choice((1, 3)), 0, rng.randrange(3), False)]
    for _ in range(rng.choice((6, 12))):
        at, rank = rng.uniform(0, spread), rng.randrange(size)
        talk = ((10, None), (30_000, None), (30_000, None), (30_000, rng.choice((None, 0.001))))
        devices = rng.choice(((), (0,), (0, 1), (1, 2)))
        found.append(
            rng.choice(
                (
                    _step(at, "l_hold", rank, devices, rng.choice((0.0, 0.2, 2.0)), rng.choice((None, None, 0.0)), 1),
                    _step(at, "l_hold", rank, devices, 2.0, None, 1),
                    _step(at, "q_put", (CREW, rank), "p", "", 3, "put", False),
                    _step(at, "q_take", (CREW, rank), "p", "", 2, "get", 1),
                    _step(at, "m_stay", rank, 0.2),
                    _step(at, "burst", (CREW, rank), 6),
                    _step(at, "t_talk", rank, (rank + 1) % size, talk, (None,)),
                    _step(at, "look_ports", rank, rng.choice((None, 40_000))),
                    _step(at, "look_nobody", rank),
                    _step(at, "nest", rank, rng.randrange(max(crew) + 1), rng.choice((0.0, 1.0))),
                )
            )
        )
    if rng.random() < 0.4:
        found.append(_step(rng.uniform(0, spread + 0.5), "kill", (CREW, rng.randrange(size))))
    for _ in range(rng.choice((2, 4))):
        found.append(_step(rng.uniform(0, spread), "look", rng.choice(("status", "why", "queue"))))
    own = random.Random(str(found))
    found.append(_step(spread + 20.0, "nest_orphaned", *own.sample(range(size), 2), own.randrange(max(crew) + 1)))
    return found


CLUSTER_FAMILIES: Final[dict[str, Draw]] = {
    "guests": _guests,
    "looks": _looks,
    "relays": _relays,
    "weights": _weights,
}
