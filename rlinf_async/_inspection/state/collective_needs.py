"""The needs of ranks in collectives of torch.distributed: members of the group that have not arrived.

A report lists members by their rank in torch's world. These ranks are taken to be ranks of the worker group only if
that is plausible: rank 0 of a trainer and all rollouts, for example, may form their own process group to transfer
weights.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from rlinf_async._inspection.state.collectives import can_meet, is_point_to_point, is_rendezvous
from rlinf_async._inspection.state.needs import Need, action_of, is_in_collective, needs_of
from rlinf_async._inspection.state.run_report import ProcessReport, Target, TargetKind, Wait
from rlinf_async._inspection.state.wait_graph import WaitGraph, WaitNode

# Seconds after which ranks that are all in a rendezvous are taken never to meet, because each waits for a different key
# of the store.
RENDEZVOUS_S: Final = 10.0

# Names that torch.distributed gives to process groups; groups with other names may number their ranks differently.
_NUMBERED_BY_TORCH: Final = re.compile(r"\d*|[0-9a-f]{40}")


@dataclass(frozen=True)
class _Inside:
    """An activity in a collective, with the other members' ranks and the group's known members; empty if unknown."""

    process: ProcessReport
    name: str
    others: frozenset[int]
    members: frozenset[int]

    @property
    def group(self) -> str:
        return self.name.partition("#")[2]


class Needs:
    """The needs of all nodes of a graph, each computed once."""

    def __init__(self, graph: WaitGraph) -> None:
        self.graph = graph
        self._found: dict[WaitNode, list[Need]] = {}
        self._inside: dict[WaitNode, _Inside] = {}
        self._inside_of: dict[int, list[_Inside]] = defaultdict(list)
        self._late: dict[tuple[str, str, frozenset[int]], list[int]] = {}
        self._arrivals: dict[tuple[str, str, int], Need] = {}
        for node in graph.nodes:
            if node.waits and node.wait is not None and is_in_collective(node.wait):
                self._inside[node] = inside = self._enter(node.process, node.wait)
                self._inside_of[node.process.endpoint].append(inside)
        # Process groups that have, or may have, members outside the worker group.
        self._foreign = {inside.group for inside in self._inside.values() if self._is_foreign(inside)}

    def __repr__(self) -> str:
        return f"<Needs of {self.graph!r}>"

    def of(self, node: WaitNode) -> list[Need]:
        """Return the needs of a waiting activity; empty if they are unknown."""
        if node not in self._found:
            self._found[node] = needs_of(self.graph, node)
            if (inside := self._inside.get(node)) is not None:
                self._found[node] += self._of_collective(inside, node.age)
        return self._found[node]

    def _enter(self, process: ProcessReport, wait: Wait) -> _Inside:
        others = frozenset(target.number for target in wait.targets if target.kind is TargetKind.COLLECTIVE)
        known = others or self.graph.members.get(process.group, {}).keys()
        return _Inside(process, collective_name(wait), others, frozenset((*known, process.rank)))

    def _is_foreign(self, inside: _Inside) -> bool:
        return (
            _NUMBERED_BY_TORCH.fullmatch(inside.group) is None
            or inside.process.rank in inside.others
            or not inside.others <= self.graph.members.get(inside.process.group, {}).keys()
        )

    def _of_collective(self, inside: _Inside, age: float | None) -> list[Need]:
        process, target = inside.process, Target(TargetKind.COLLECTIVE, name=inside.name)
        if process.role != "worker" or not process.group or inside.group in self._foreign:
            return [Need(target, coming="its members are not known")]
        late = [rank for rank in self._late_for(inside) if rank != process.rank]
        # With more than two ranks, the partner of a send or receive is unknown.
        is_with_one = is_point_to_point(inside.name.partition("#")[0]) and len(inside.members) > 2
        if not late and is_rendezvous(inside.name):
            if (age or 0.0) < RENDEZVOUS_S:
                return [Need(target, coming="all have arrived, and exchange their addresses")]
            others = sorted(inside.members - {process.rank})
            return [dataclasses.replace(self._arrival(inside, rank), arrived=True) for rank in others]
        if not late or (is_with_one and len(late) < len(inside.members) - 1):
            return [Need(target, coming="all have arrived, and data is under way")]
        arrivals = [self._arrival(inside, rank) for rank in late]
        if not is_with_one:
            return arrivals
        nodes = tuple(dict.fromkeys(node for arrival in arrivals for node in arrival.nodes))
        return [Need(target, nodes=nodes, anyone=any(arrival.anyone for arrival in arrivals))]

    def _late_for(self, inside: _Inside) -> list[int]:
        key = (inside.process.group, inside.name, inside.members)
        if key not in self._late:
            members = self.graph.members[inside.process.group]
            self._late[key] = [
                rank
                for rank in sorted(inside.members)
                if not any(
                    can_meet(inside.name, each.name) and not (each.others and each.others.isdisjoint(inside.members))
                    for each in self._inside_of.get(members[rank].endpoint, ())
                )
            ]
        return self._late[key]

    def _arrival(self, inside: _Inside, rank: int) -> Need:
        key = (inside.process.group, inside.name, rank)
        if key not in self._arrivals:
            process = self.graph.members[inside.process.group][rank]
            target = Target(TargetKind.COLLECTIVE, process.endpoint, rank, inside.name)
            end = self.graph.end_of(process)
            self._arrivals[key] = (
                Need(target, process, ended=end) if end else action_of(self.graph, target, process, None)
            )
        return self._arrivals[key]


def collective_name(wait: Wait) -> str:
    """Return ``all_reduce#0``, or only the operation if the group's name is unknown."""
    return next((target.name for target in wait.targets if target.name), wait.kind)
