"""Broken promises beside those of ``judgement``: order of calls, versions of weights."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from rlinf_async._simulation.sim_cluster import SimCluster
from tests.simulation.judgement import Violation
from tests.simulation.operations import Operation
from tests.simulation.program import Program
from tests.simulation.subject import ANY_RANK


def check(book: Sequence[Operation]) -> list[Violation]:
    """All that is wrong with what was noted."""
    return [*_order_of_calls(book), *_versions(book)]


def judge_pool(book: Sequence[Operation], program: Program) -> list[Violation]:
    """Calls that any rank takes: none a third time, where there is room, elsewhere after a loss, by key at one rank."""
    attempts: dict[int, list[Operation]] = defaultdict(list)
    for operation in book:
        if operation.kind == "attempt":
            attempts[operation.facts[0]].append(operation)
    kinds = {step.kind for step in program.steps}
    deaths = [step for step in program.steps if step.kind == "kill" and step.facts[0][0] == "pool"]  # type: ignore[index]
    is_quiet = not kinds & {"stop", "starve", "cut", "cut_pair", "kill_node"}
    found, ranks = [], defaultdict(set)
    for call in (operation for operation in book if operation.kind == "any"):
        begun = attempts[call.facts[0]]
        if len(begun) > 2:
            found.append(Violation("twice", f"{call} was begun {len(begun)} times"))
        if call.ended and call.error is None and not begun:
            found.append(Violation("lost", f"{call} has not run"))
        found += [Violation("order", f"{each} is one of {each.facts[1]} at once") for each in begun if each.facts[1]]
        if is_quiet and call.error is not None and call.error[0] == "DeadlineExceeded":
            found.append(Violation("error", f"{call}, and no rank was silent"))
        if is_quiet and len(deaths) < 2 and call.error is not None and call.error[0] == "WorkerDied":
            found.append(Violation("death", f"{call} was not begun elsewhere"))
        ranks[call.facts[1]] |= {each.who for each in begun}
    if is_quiet and not deaths:
        spread = {key: sorted(each) for key, each in ranks.items() if key is not None and len(each) > 1}
        found += [Violation("order", f"calls of key {key!r} went to {each}") for key, each in spread.items()]
    return found


def compare_views(sim: SimCluster) -> list[Violation]:
    """All nodes that live, and do not stand still, agree on those that are lost, where node 0 is there to say so."""
    if sim.nodes[0].has_ended:
        return []
    awake = [node for node in sim.nodes if not node.has_ended and node.process.stopped_until <= sim.scheduler.now]
    views = {node.number: sorted(lost["node"] for lost in node.lost) for node in awake}
    if len({tuple(view) for view in views.values()}) > 1:
        return [Violation("views", f"who is lost, by node: {views}")]
    return []


def find_connections(sim: SimCluster, since: float) -> list[Violation]:
    """Connections that daemons have made anew although nothing was wrong: one of them broke those that they had."""
    made = sim.fabric.made_since(since)
    return [Violation("links", f"nodes {cable.nodes} had no cause for another connection") for cable in made]


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
        if operation.kind in ("call", "all") and ANY_RANK not in operation.facts:
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
