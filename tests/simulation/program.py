"""Random programs for a simulated cluster: a seed's steps over the public API, with faults among them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from tests.simulation import cluster_families, families, waiting_families
from tests.simulation.step import Step

SIZES: Final = (0, 100, 70_000, 300_000)
"""Bytes: none, in a frame, in shared memory, more than one piece between nodes."""

GROUPS: Final = ("a", "b")


@dataclass(frozen=True)
class Program:
    """What is done in one simulation.

    Attributes:
        placement: by group, the node of each rank.
        restart: by group, ``rank``, ``group`` or None.
        drift: of the nodes' clocks.
        ring: the node of each rank of a group whose ``on_restart`` receives from the rank before; empty for none.
        ring_blocks: that is a ``def``.
        pool: the node of each rank of a group whose calls any rank may take; empty for none.
        pool_restarts: its ranks are started again.
        order: of groups whose ranks are started again one by one, the ring and the pool among them.
        families: those that its steps are of, on a group of their own; none of most programs.
        is_calm: it has no faults, and nothing but the steps of its families.
        hook: what the hook of restarts of that group does, a ``def`` if ``hook_blocks``.
        is_small: thresholds of the protocol are small.
    """

    nodes: int
    placement: dict[str, tuple[int, ...]] = field(hash=False)
    restart: dict[str, str | None] = field(hash=False)
    drift: float = 0.0
    steps: tuple[Step, ...] = ()
    ring: tuple[int, ...] = ()
    ring_blocks: bool = False
    pool: tuple[int, ...] = ()
    pool_restarts: bool = False
    order: str = "group"
    families: tuple[str, ...] = ()
    is_calm: bool = False
    hook: str = ""
    hook_blocks: bool = False
    is_small: bool = False

    @property
    def is_of_a_cluster(self) -> bool:
        """True if its families are those of whole clusters."""
        return bool({*cluster_families.CLUSTER_FAMILIES, cluster_families.CHAINS} & set(self.families))

    @property
    def is_of_waiting(self) -> bool:
        """True if its families are those of what happens a second time."""
        return bool(waiting_families.WAITING_FAMILIES.keys() & set(self.families))

    def __str__(self) -> str:
        ring = f", ring {self.ring} {'def' if self.ring_blocks else 'async'}" if self.ring else ""
        pool = f", pool {self.pool} {'rank' if self.pool_restarts else None}" if self.pool else ""
        order = "" if self.order == "group" else f", order {self.order}"
        head = f"{self.nodes} nodes, groups {self.placement}, restart {self.restart}, drift {self.drift}"
        families = f", families {self.families}{' calm' if self.is_calm else ''} {self.hook}" if self.families else ""
        small = ", small limits" if self.is_small else ""
        head += f"{ring}{pool}{order}{families}{small}"
        return "\n".join([head, *(f"  {step}" for step in self.steps)])


_TRAFFIC: Final = {
    "call": 5, "burst": 2, "give_up": 1, "call_all": 2, "stream": 1, "peer": 3, "send": 5, "open": 2, "put": 4,
    "get": 4, "close": 1, "cancel": 3, "train": 1, "roll_out": 1, "guest": 1, "broadcast": 1,
    "thread": 2,
}  # fmt: skip
_FAULTS: Final = {"kill": 3, "restart": 1, "cut": 2, "cut_pair": 1, "stop": 2, "sever": 3, "starve": 2, "kill_node": 1}


def write(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(seed)
    nodes = rng.choice((1, 2, 3, 3))
    placement = {group: tuple(rng.randrange(nodes) for _ in range(rng.choice((1, 2, 2)))) for group in GROUPS}
    placement = {group: tuple(sorted(each)) for group, each in placement.items()}
    restart = {group: rng.choice((None, "rank", "rank", "group")) for group in GROUPS}
    count = rng.randrange(4, 16)
    spread = rng.choice((0.01, 0.3, 3.0))
    faulty = rng.random() < 0.7
    steps = []
    for _ in range(count):
        at = rng.uniform(0, spread)
        if faulty and rng.random() < 0.2:
            steps += _phrase(rng, at, spread, nodes, placement)
            continue
        kinds = dict(_TRAFFIC)
        if faulty:
            kinds |= _FAULTS
        (kind,) = rng.choices(list(kinds), list(kinds.values()))
        steps.append(Step(round(at, 4), kind, _facts(rng, kind, nodes, placement)))
    drift = rng.choice((0.0, 0.0, 0.01))
    ring: tuple[int, ...] = ()
    if seed % 10 == 9:  # behind all that is drawn, and not by chance: the other programs stay as they were
        ring = tuple(sorted(rng.randrange(nodes) for _ in range(rng.choice((2, 3)))))
        steps += _deaths_in_a_ring(rng, spread, len(ring))
    blocks = rng.random() < 0.5
    pool: tuple[int, ...] = ()
    pool_restarts = False
    if seed % 10 in (4, 7):  # the same
        pool = tuple(sorted(rng.randrange(nodes) for _ in range(rng.choice((2, 3)))))
        pool_restarts = rng.random() < 0.5
        steps += _pool_calls_and_faults(rng, spread, len(pool))
        if seed % 40 == 4:
            steps.append(Step(spread, "pool_end", (nodes - 1,)))
    order = "rank" if seed % 10 == 0 or seed % 20 in (7, 9) else "group"
    if seed % 10 == 0:
        group = rng.choice(GROUPS)
        placement[group] = (*placement[group], rng.randrange(nodes)) if rng.random() < 0.7 else placement[group]
        restart[group] = rng.choice(("rank", "rank", "rank", restart[group]))
        steps += _calls_beside_deaths(rng, spread, group, placement[group])
    names: tuple[str, ...] = ()
    is_calm = hook_blocks = False
    hook = ""
    if families.is_of_a_family(seed):
        mixed = rng.random() < 0.25
        if not mixed:
            placement, restart, steps = {}, {}, []
        size = rng.choice((2, 3, 3, 4))
        placement[families.CREW] = tuple(sorted(rng.randrange(nodes) for _ in range(size)))
        restart[families.CREW] = rng.choice((None, "rank", "rank"))
        names, is_calm, more = families.draw(rng, spread, nodes, size)
        is_calm = is_calm and not mixed
        if "hooks" in names:
            is_calm = False
            restart[families.CREW] = rng.choice(("rank", "rank", "group"))
            hook, hook_blocks = rng.choice(families.HOOKS), rng.random() < 0.5
        steps += more
    if families.is_of_a_loss(seed):
        places, back, steps = families.draw_loss(rng)
        nodes, names = 4 if any(step.kind == "stand" for step in steps) else 3, ("losses",)
        placement, restart = {families.CREW: places}, {families.CREW: back}
    if cluster_families.is_of_a_cluster(seed):
        names, placement, steps = cluster_families.draw(rng, spread)
        if cluster_families.is_of_a_chain(seed):
            names, (placement, steps) = (cluster_families.CHAINS,), cluster_families.draw_chain(rng)
        nodes = max(placement[families.CREW]) + 1
        restart = {group: rng.choice((None, "rank", "rank")) for group in placement}
        is_calm = not any(step.kind in cluster_families.FAULTS for step in steps)
    if waiting_families.is_of_waiting(seed):
        names, placement, back, steps = waiting_families.draw(rng)
        nodes = max(max(places) for places in placement.values()) + 1
        restart = {families.CREW: back, waiting_families.VISITOR: None}
        is_calm = not any(step.kind == "kill" for step in steps)
    if families.is_of_an_experience(seed):
        names, ring, pool = ("experience",), (), ()
        nodes, places, back, steps = families.draw_experience(random.Random(seed))
        placement, restart = {families.CREW: places}, {families.CREW: back}
    in_order = tuple(sorted(steps, key=lambda step: step.at))
    return Program(
        nodes, placement, restart, drift, in_order, ring, blocks, pool, pool_restarts, order,
        names, is_calm, hook, hook_blocks, _is_small(seed),
    )  # fmt: skip


def _is_small(seed: int) -> bool:
    if families.is_of_a_loss(seed):
        return seed % 40 == 5
    if waiting_families.is_of_waiting(seed):
        return seed % 80 >= 40
    return cluster_families.is_of_a_cluster(seed) or 5 <= seed % 20 < 15


def _pool_calls_and_faults(rng: random.Random, spread: float, size: int) -> list[Step]:
    """Calls that any rank may take, more than have room at once, among deaths, stops and cancels of these."""
    found = []
    for _ in range(rng.choice((2, 4, 6))):
        at = rng.uniform(0, spread)
        kind = rng.choice(("once", "again", "again", "stream", "tokens"))
        key = rng.choice((None, None, "k", "l"))
        limit = rng.choice((None, 1, 2))
        stall_s = rng.choice((None, 0.5, 2.0))
        found.append(Step(round(at, 4), "any", (kind, rng.choice((1, 3, 8)), limit, key, stall_s)))
        rank = ("pool", rng.randrange(size))
        faults: list[tuple[str, tuple[object, ...]]] = [
            ("kill", (rank,)),
            ("stop", (rank, rng.choice((1.0, 6.0)))),
            ("sever", (rank, "close")),
            ("cancel", (rng.randrange(4),)),
        ]
        fault, facts = rng.choice(faults)
        found.append(Step(round(at + rng.choice((0.001, 0.02, 0.3)), 4), fault, facts))
    return [*found, Step(round(spread + 0.5, 4), "any", ("again", 3, 1, None, None))]


def _deaths_in_a_ring(rng: random.Random, spread: float, size: int) -> list[Step]:
    """Deaths soon after each other, some while the hooks of an earlier one run, and a call behind them."""
    at, found = rng.uniform(0, spread), []
    for _ in range(rng.choice((1, 2, 3, 4))):
        found.append(Step(round(at, 4), "kill", (("ring", rng.randrange(size)),)))
        at += rng.choice((0.01, 0.12, 0.25, 0.4, 0.6))
    return [*found, Step(round(at, 4), "call", (("ring", rng.randrange(size)), "async", 100, 1))]


def _calls_beside_deaths(rng: random.Random, spread: float, group: str, ranks: tuple[int, ...]) -> list[Step]:
    """Deaths of ranks, some by a task of their own, among calls of one rank and of all."""
    at, found = rng.uniform(0, spread), []
    for _ in range(rng.choice((1, 2, 4))):
        rank = (group, rng.randrange(len(ranks)))
        death = rng.choice((("kill", (rank,)), ("background", (rank, rng.choice((0.0, 0.05, 0.3)), True))))
        quiet = ("background", ((group, rng.randrange(len(ranks))), rng.choice((0.05, 300.0)), False))
        for kind, facts in (quiet, death, ("beside", (group, rng.choice((1, 3)))), ("beside", (group, 2))):
            found.append(Step(round(at, 4), kind, facts))
            at += rng.choice((0.001, 0.02, 0.2))
    return found


def _phrase(
    rng: random.Random, at: float, spread: float, nodes: int, placement: dict[str, tuple[int, ...]]
) -> list[Step]:
    """Traffic between two ranks, a fault of one of them, and the same traffic again."""
    ranks = [(group, rank) for group in GROUPS for rank in range(len(placement[group]))]
    one, other = rng.sample(ranks, 2)
    traffic: list[tuple[str, tuple[object, ...]]] = [
        ("send", (one, other, rng.choice(SIZES), rng.choice((1, 3)), rng.random() < 0.5, None)),
        ("send", (other, one, rng.choice(SIZES), 1, rng.random() < 0.5, None)),
        ("peer", (one, other, rng.choice(SIZES), rng.choice((1, 3)))),
        ("call", (other, rng.choice(("def", "async", "again")), rng.choice(SIZES), 3)),
        ("burst", (other, 6)),
    ]
    fault = rng.choice(
        (
            ("kill", (other,)),
            ("kill", (other,)),
            ("restart", (other,)),
            ("sever", (other, rng.choice(("shutdown", "close")))),
            ("sever", (one, rng.choice(("shutdown", "close")))),
            ("stop", (other, rng.choice((0.2, 3.0)))),
            ("starve", (other, rng.choice((0.2, 3.0)))),
            ("cut", (placement[other[0]][other[1]], rng.choice((1.0, 9.0, 20.0)))),
        )
    )
    gap = rng.choice((0.001, 0.02, 0.2, 1.0))
    said = [rng.choice(traffic) for _ in range(rng.choice((0, 1, 2)))]
    again = [rng.choice((*said, rng.choice(traffic))) for _ in range(rng.choice((1, 2, 3)))]
    moments = [at + gap * index for index in range(len(said) + 1 + len(again))]
    everything = [*said, fault, *again]
    return [Step(round(when, 4), kind, facts) for when, (kind, facts) in zip(moments, everything, strict=True)]


def _facts(rng: random.Random, kind: str, nodes: int, placement: dict[str, tuple[int, ...]]) -> tuple[object, ...]:
    def rank() -> tuple[str, int]:
        group = rng.choice(GROUPS)
        return group, rng.randrange(len(placement[group]))

    who = rng.choice(("driver", *GROUPS))
    line = rng.choice(("x", "y"))
    deadline = rng.choice((None, None, None, 0.01, 0.5, 5.0))
    times = rng.choice((1, 1, 3, 8))
    size = rng.choice(SIZES)
    if kind == "call":
        return (rank(), rng.choice(("def", "async", "again")), size, times)
    if kind == "give_up":
        return (rank(),)
    if kind == "guest":
        return (rng.choice(("g", "h")), rng.randrange(nodes), rng.choice((0.0, 0.02, 1.0)))
    if kind == "broadcast":
        return (rank(), rng.choice(SIZES))
    if kind == "thread":
        return (rank(), line, times)
    if kind == "burst":
        return (rank(), rng.choice((4, 12)))
    if kind == "call_all":
        return (rng.choice(GROUPS), rng.choice((1, 3)))
    if kind == "stream":
        return (rank(), times)
    if kind == "peer":
        return (rank(), rank(), size, times)
    if kind == "send":
        return (rank(), rank(), size, times, rng.choice((True, False)), deadline)
    if kind == "open":
        return (line, rng.choice((0, 0, 1, 3)), rng.randrange(nodes))
    if kind in ("put", "get"):
        return (who if who == "driver" else rank(), line, times, deadline)
    if kind == "close":
        return (line,)
    if kind == "train":
        return (rng.choice((1, 3, 10)), rng.choice((0.0, 0.01, 0.3)))
    if kind == "roll_out":
        return (rng.randrange(len(placement["b"])), rng.choice((1, 5, 20)), rng.choice((0.0, 0.01, 0.1)))
    if kind == "cancel":
        return (rng.randrange(6),)
    if kind in ("kill", "restart", "sever"):
        return (rank(), *((rng.choice(("shutdown", "close")),) if kind == "sever" else ()))
    if kind in ("stop", "starve"):
        return (rank(), rng.choice((0.2, 3.0)))
    if kind == "cut":
        return (rng.randrange(nodes), rng.choice((0.05, 1.0, 4.0, 9.0, 20.0)))
    if kind == "cut_pair":
        return (rng.randrange(nodes), rng.randrange(nodes), rng.choice((1.0, 9.0, 20.0)))
    return (rng.randrange(nodes),)  # kill_node
