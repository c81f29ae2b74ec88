"""The cores of hopeless waits: circles of waits, and waits that no live activity can end."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlinf_async._inspection.state.liveness import Liveness
from rlinf_async._inspection.state.needs import Need
from rlinf_async._inspection.state.wait_graph import WaitNode, is_stopped


@dataclass(frozen=True)
class Core:
    """The waits from which all other hopeless waits follow; if it is a circle, its nodes wait for each other."""

    nodes: list[WaitNode]
    needs: list[tuple[WaitNode, Need]]
    is_circle: bool


def core_of(liveness: Liveness) -> Core | None:
    """Return the core that a driver waits for, else any core; None if no wait is hopeless."""
    hopeless = by_age(liveness.hopeless)
    if not hopeless:
        return None
    following = {node: _following(liveness, node) for node in hopeless}
    drivers = [node for node in hopeless if node.process.role == "driver"]
    awaited = _reached_from(drivers, following)
    # Consider the nodes that a driver waits for first, because other hopeless waits may be in the background.
    ordered = [*(node for node in hopeless if node in awaited), *(node for node in hopeless if node not in awaited)]
    circle = _shortest_circle(ordered, following)
    if circle:
        around = _around(circle[0], following) - set(circle)
        nodes = [*circle, *(node for node in ordered if node in around)]
        return Core(nodes, _unmet(liveness, nodes), True)
    ends = [node for node in ordered if not following[node]]
    nodes = [node for node in ends if node in awaited] or ends
    return Core(nodes, _unmet(liveness, nodes), False)


def waiting_for(liveness: Liveness, core: Sequence[WaitNode]) -> list[WaitNode]:
    return [node for node in by_age(liveness.hopeless) if node not in core]


def stopped_ones(liveness: Liveness) -> list[WaitNode]:
    """Return the stopped processes that others wait for or, if none is known to be awaited, all stopped processes."""
    stopped = [node for node in liveness.graph.nodes if is_stopped(node.process)]
    following = {node: _following(liveness, node, everything=True) for node in liveness.hopeless}
    awaited = _reached_from(liveness.hopeless, following)
    return [node for node in stopped if node in awaited] or stopped


def by_age(nodes: Iterable[WaitNode]) -> list[WaitNode]:
    """Return the nodes sorted by age, oldest first; among equals, drivers first."""
    return sorted(nodes, key=lambda node: (-(node.age or 0.0), node.process.role != "driver", node.process.endpoint))


def _following(liveness: Liveness, node: WaitNode, *, everything: bool = False) -> list[WaitNode]:
    """Return the nodes for which a node waits, except live ones.

    If a later call could also meet a need, only nodes that serve a call count, because others run in the background.
    """
    found = (
        other
        for need in liveness.needs.of(node)
        if not liveness.may_be_met(need)
        for other in need.nodes
        if everything or (other.activity is not None and (other.serves or not need.anyone))
    )
    return list(dict.fromkeys(found))


def _unmet(liveness: Liveness, nodes: Iterable[WaitNode]) -> list[tuple[WaitNode, Need]]:
    return [(node, need) for node in nodes for need in liveness.needs.of(node) if not liveness.may_be_met(need)]


def _reached_from(nodes: Iterable[WaitNode], following: dict[WaitNode, list[WaitNode]]) -> set[WaitNode]:
    found: set[WaitNode] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += following.get(node, [])
    return found


def _shortest_circle(nodes: Iterable[WaitNode], following: dict[WaitNode, list[WaitNode]]) -> list[WaitNode]:
    """Return a shortest circle through the first node that is in any circle; empty if there is none."""
    for start in nodes:
        before: dict[WaitNode, WaitNode] = {}
        waiting = deque([start])
        while waiting:
            node = waiting.popleft()
            for other in following[node]:
                if other is start:
                    return _back_to(start, node, before)
                if other not in before:
                    before[other] = node
                    waiting.append(other)
    return []


def _back_to(start: WaitNode, node: WaitNode, before: dict[WaitNode, WaitNode]) -> list[WaitNode]:
    path = [node]
    while path[-1] is not start:
        path.append(before[path[-1]])
    return path[::-1]


def _around(node: WaitNode, following: dict[WaitNode, list[WaitNode]]) -> set[WaitNode]:
    """Return the nodes in a mutual wait with a node, such as other ranks in the same collective."""
    leading: dict[WaitNode, list[WaitNode]] = defaultdict(list)
    for one, others in following.items():
        for other in others:
            leading[other].append(one)
    return _reached_from([node], following) & _reached_from([node], leading)
