"""Cores of hopeless waits: circles in which each waits for the next, and waits for what nothing alive could do."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlinf_async._inspection.state.liveness import Liveness
from rlinf_async._inspection.state.needs import Need
from rlinf_async._inspection.state.wait_graph import Node, is_stopped


@dataclass(frozen=True)
class Core:
    """Waits from which all other hopeless ones follow.

    Attributes:
        nodes: of a circle in its order, the first one waits for the second.
        needs: those that will not be met, with the node that has them.
        is_circle: each waits for the next, and the last for the first.
    """

    nodes: list[Node]
    needs: list[tuple[Node, Need]]
    is_circle: bool


def core_of(liveness: Liveness) -> Core | None:
    """The core that a driver waits for, if it waits for one; None where nothing is hopeless."""
    hopeless = by_age(liveness.hopeless)
    if not hopeless:
        return None
    following = {node: _following(liveness, node) for node in hopeless}
    drivers = [node for node in hopeless if node.process.role == "driver"]
    awaited = _reached_from(drivers, following)
    # What a driver waits for comes first: the others may be waits in the background, which have always been hopeless.
    ordered = [*(node for node in hopeless if node in awaited), *(node for node in hopeless if node not in awaited)]
    circle = _shortest_circle(ordered, following)
    if circle:
        around = _around(circle[0], following) - set(circle)
        nodes = [*circle, *(node for node in ordered if node in around)]
        return Core(nodes, _unmet(liveness, nodes), True)
    ends = [node for node in ordered if not following[node]]
    nodes = [node for node in ends if node in awaited] or ends
    return Core(nodes, _unmet(liveness, nodes), False)


def waiting_for(liveness: Liveness, core: Sequence[Node]) -> list[Node]:
    """Hopeless nodes besides, the oldest first."""
    return [node for node in by_age(liveness.hopeless) if node not in core]


def stopped_ones(liveness: Liveness) -> list[Node]:
    """The stopped processes that something waits for; where it is not known what they would do, all of them."""
    stopped = [node for node in liveness.graph.nodes if is_stopped(node.process)]
    following = {node: _following(liveness, node, everything=True) for node in liveness.hopeless}
    awaited = _reached_from(liveness.hopeless, following)
    return [node for node in stopped if node in awaited] or stopped


def by_age(nodes: Iterable[Node]) -> list[Node]:
    """The oldest first; drivers first among equals."""
    return sorted(nodes, key=lambda node: (-(node.age or 0.0), node.process.role != "driver", node.process.endpoint))


def _following(liveness: Liveness, node: Node, *, everything: bool = False) -> list[Node]:
    """The nodes that it waits for, but for those that are alive.

    Where a call to come could do it as well, only those count that serve a call: others run in the background.
    """
    found = (
        other
        for need in liveness.needs.of(node)
        if not liveness.may_be_met(need)
        for other in need.nodes
        if everything or (other.activity is not None and (other.serves or not need.anyone))
    )
    return list(dict.fromkeys(found))


def _unmet(liveness: Liveness, nodes: Iterable[Node]) -> list[tuple[Node, Need]]:
    return [(node, need) for node in nodes for need in liveness.needs.of(node) if not liveness.may_be_met(need)]


def _reached_from(nodes: Iterable[Node], following: dict[Node, list[Node]]) -> set[Node]:
    """These, and all that they wait for, through others too."""
    found: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += following.get(node, [])
    return found


def _shortest_circle(nodes: Iterable[Node], following: dict[Node, list[Node]]) -> list[Node]:
    """A circle through the first of the nodes that is in one; none if none is."""
    for start in nodes:
        before: dict[Node, Node] = {}
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


def _back_to(start: Node, node: Node, before: dict[Node, Node]) -> list[Node]:
    path = [node]
    while path[-1] is not start:
        path.append(before[path[-1]])
    return path[::-1]


def _around(node: Node, following: dict[Node, list[Node]]) -> set[Node]:
    """All that it waits for and that waits for it: more ranks in the same collective."""
    leading: dict[Node, list[Node]] = defaultdict(list)
    for one, others in following.items():
        for other in others:
            leading[other].append(one)
    return _reached_from([node], following) & _reached_from([node], leading)
