"""Broken promises that the judgement of real runs does not look for: order of calls, versions of weights."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from rlinf_async._simulation.sim_cluster import SimCluster
from tests.faults.journal import Operation
from tests.faults.judgement import Violation


def check(book: Sequence[Operation]) -> list[Violation]:
    """All that is wrong with what was noted."""
    return [*_order_of_calls(book), *_versions(book)]


def compare_views(sim: SimCluster) -> list[Violation]:
    """All nodes that live agree on those that are lost, where node 0 is there to say so."""
    if sim.nodes[0].has_ended:
        return []
    views = {node.number: sorted(lost["node"] for lost in node.lost) for node in sim.nodes if not node.has_ended}
    if len({tuple(view) for view in views.values()}) > 1:
        return [Violation("views", f"who is lost, by node: {views}")]
    return []


def find_left(loop: asyncio.AbstractEventLoop, sim: SimCluster) -> list[Violation]:
    """What a driver still has of a cluster that it has closed: tasks and timers of its loop, and threads."""
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    left = [f"task {task.get_name()} of {task.get_coro()!r}" for task in tasks if not task.done()]
    left += [f"timer {timer!r}" for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
    left += [f"thread {name}" for name in sim.driver_threads]
    return [Violation("left", text) for text in sorted(left)]


def _order_of_calls(book: Sequence[Operation]) -> list[Violation]:
    """The calls of one caller on one worker begin in the order in which they were made, those of a whole group too."""
    made: dict[int, tuple[str, int]] = {}
    for place, operation in enumerate(book):
        if operation.kind in ("call", "all"):
            made[operation.facts[0]] = operation.who, place
    latest: dict[tuple[str, str], tuple[int, int]] = {}
    found = []
    for operation in book:
        if operation.kind == "run" and operation.facts[0] in made:
            caller, place = made[operation.facts[0]]
            pair = caller, operation.who
            before = latest.get(pair, (-1, -1))
            if place < before[0]:
                text = f"{pair[0]} -> {pair[1]}: call {operation.facts[0]} began behind the later call {before[1]}"
                found.append(Violation("order", text))
            latest[pair] = max(before, (place, operation.facts[0]))
    return found


def _versions(book: Sequence[Operation]) -> list[Violation]:
    """Weights are whole, are what was published under their number, and never go back."""
    latest: dict[str, int] = defaultdict(int)
    found = []
    for operation in book:
        if operation.kind != "version":
            continue
        version, numbers = operation.facts
        if numbers != [float(version)]:
            found.append(Violation("torn", f"{operation.who} read version {version}, whose numbers are {numbers}"))
        if version < latest[operation.who]:
            text = f"{operation.who} read version {version} behind version {latest[operation.who]}"
            found.append(Violation("back", text))
        latest[operation.who] = version
    return found
