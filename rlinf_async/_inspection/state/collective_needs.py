"""Needs of ranks inside collectives of torch.distributed: the members of the group that have not arrived.

A report has the members as ranks of torch's world.  They are taken for ranks of the worker group only where that is
plausible: a trainer's rank 0 and all rollouts may make a process group of their own to bring weights across.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rlinf_async._inspection.state.collectives import can_meet, is_point_to_point
from rlinf_async._inspection.state.needs import Need, action_of, is_in_collective, needs_of
from rlinf_async._inspection.state.run_report import ProcessReport, Target, TargetKind, Wait
from rlinf_async._inspection.state.wait_graph import Node, WaitGraph

_NUMBERED_BY_TORCH: Final = re.compile(r"\d*|[0-9a-f]{40}")
"""Names of process groups that torch.distributed makes by itself; others may have ranks of their own."""


@dataclass(frozen=True)
class _Inside:
    """An activity in a collective.

    Attributes:
        name: ``all_reduce#0``; without the group's name where that is not known.
        ranks: of the others; empty where they are not known.
    """

    node: Node
    name: str
    ranks: frozenset[int]

    @property
    def group(self) -> str:
        return self.name.partition("#")[2]


class Needs:
    """The needs of all nodes of a graph, each found once."""

    def __init__(self, graph: WaitGraph) -> None:
        self.graph = graph
        self._found: dict[Node, list[Need]] = {}
        self._inside: dict[int, list[_Inside]] = defaultdict(list)
        """By endpoint."""
        for node in graph.nodes:
            if (inside := _inside(node)) is not None:
                self._inside[node.process.endpoint].append(inside)
        self._foreign = {each.group for all_of in self._inside.values() for each in all_of if self._is_foreign(each)}
        """Process groups that have members elsewhere, or may have."""

    def __repr__(self) -> str:
        return f"<Needs of {self.graph!r}>"

    def of(self, node: Node) -> list[Need]:
        """What a waiting activity waits for; nothing of those of which that is not known."""
        if node not in self._found:
            inside = _inside(node)
            found = needs_of(self.graph, node)
            self._found[node] = found if inside is None else [*found, *self._of_collective(inside)]
        return self._found[node]

    def _of_collective(self, inside: _Inside) -> Iterator[Need]:
        node, name = inside.node, inside.name
        process = node.process
        members = self.graph.members.get(process.group, {})
        if process.role != "worker" or process.rank not in members or inside.group in self._foreign:
            yield Need(Target(TargetKind.COLLECTIVE, name=name), coming="its members are not known")
            return
        ranks = sorted(inside.ranks or members.keys() - {process.rank})
        late = [rank for rank in ranks if not self._has_arrived(node, rank, name)]
        # Of a send or receive the partner is not known where there are several ranks.
        any_of_them = is_point_to_point(name.partition("#")[0]) and len(ranks) > 1
        if not late or (any_of_them and len(late) < len(ranks)):
            yield Need(Target(TargetKind.COLLECTIVE, name=name), coming="all have arrived, and data is under way")
            return
        arrivals = [self._arrival(node, rank, name) for rank in late]
        if not any_of_them:
            yield from arrivals
            return
        yield Need(
            Target(TargetKind.COLLECTIVE, name=name),
            nodes=tuple(dict.fromkeys(other for arrival in arrivals for other in arrival.nodes)),
            anyone=any(arrival.anyone for arrival in arrivals),
            coming=next((arrival.coming for arrival in arrivals if arrival.coming), ""),
        )

    def _is_foreign(self, inside: _Inside) -> bool:
        """Whether its ranks cannot be those of the worker group, or need not."""
        process = inside.node.process
        known = self.graph.members.get(process.group, {})
        return (
            _NUMBERED_BY_TORCH.fullmatch(inside.group) is None
            or process.rank in inside.ranks
            or not inside.ranks <= known.keys()
        )

    def _has_arrived(self, node: Node, rank: int, name: str) -> bool:
        """Whether a rank is in an operation that fits, with this one among its partners."""
        process = self.graph.members[node.process.group].get(rank)
        return process is not None and any(
            can_meet(name, each.name) and (not each.ranks or node.process.rank in each.ranks)
            for each in self._inside.get(process.endpoint, ())
            if each.node is not node
        )

    def _arrival(self, node: Node, rank: int, name: str) -> Need:
        process: ProcessReport | None = self.graph.members[node.process.group].get(rank)
        if process is None:
            return Need(Target(TargetKind.COLLECTIVE, 0, rank, name), coming="nothing is known of that rank")
        target = Target(TargetKind.COLLECTIVE, process.endpoint, rank, name)
        if end := self.graph.end_of(process):
            return Need(target, process, ended=end)
        return action_of(self.graph, target, process, node)


def collective_name(wait: Wait) -> str:
    """``all_reduce#0``; without the group's name where that is not known."""
    return next((target.name for target in wait.targets if target.name), wait.kind)


def _inside(node: Node) -> _Inside | None:
    wait = node.wait
    if wait is None or not node.waits or not is_in_collective(wait):
        return None
    ranks = (target.number for target in wait.targets if target.kind is TargetKind.COLLECTIVE)
    return _Inside(node, collective_name(wait), frozenset(ranks))
