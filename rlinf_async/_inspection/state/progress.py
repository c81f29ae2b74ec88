"""Progress of a run that is not stuck: dependencies of the drivers' oldest waits, and stragglers."""

from __future__ import annotations

import re
from typing import Final

from rlinf_async._inspection.state.descriptions import age_of, names_of
from rlinf_async._inspection.state.entanglement import by_age
from rlinf_async._inspection.state.liveness import PATIENCE_S, Liveness
from rlinf_async._inspection.state.needs import is_in_collective
from rlinf_async._inspection.state.run_report import LOOP_BLOCKED, ActivityState, TargetKind
from rlinf_async._inspection.state.wait_graph import WaitNode, is_stopped

# Number of ranks of a call, parsed from its wait's description, because the targets omit ranks that have answered.
_ASKED: Final = re.compile(r" on (\d+) ranks?\b")


class Progress:
    """Chains of dependencies from a run's waits to live activities.

    Attributes:
        leaves: running activities on which the drivers' waits depend. If there are none, waits that may end soon, or
            activities that run elsewhere.
        reason: reason why the first leaf's wait may end, or why the leaf does not answer.
        waiting: waiting activities, oldest first.
        stragglers: the leaves if they are a few ranks of a group whose other ranks have finished or arrived; otherwise
            empty.
        others: text about the group's other ranks.
    """

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        graph = liveness.graph
        waiting = by_age(node for node in graph.nodes if node.waits)
        of_drivers = [node for node in waiting if node.process.role == "driver"]
        running = by_age(node for node in graph.nodes if goes_on(node))
        reached = self._reached(of_drivers or waiting)
        coming = [node for node in waiting if node in reached and self._reason(node)]
        self.leaves = [node for node in running if node in reached] or coming or running
        self.leaves.sort(key=lambda node: not blocks_its_loop(node))
        self.reason = self._reason(self.leaves[0]) if self.leaves else ""
        self.waiting = [node for node in waiting if node not in self.leaves]
        self.others = ""
        self.stragglers = self._find_stragglers(reached)

    def __repr__(self) -> str:
        return f"<Progress of {self._liveness!r} [{len(self.leaves)} leaves]>"

    def _reached(self, nodes: list[WaitNode]) -> set[WaitNode]:
        found: set[WaitNode] = set()
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += (other for need in self._liveness.needs.of(node) if not need.coming for other in need.nodes)
        return found

    def _reason(self, node: WaitNode) -> str:
        if blocks_its_loop(node):
            return "" if node.process.trouble == LOOP_BLOCKED else "its event loop is blocked there"
        if not node.waits or (node.wait is not None and node.wait.left is not None):
            return ""
        needs = self._liveness.needs.of(node)
        coming = next((need.coming for need in needs if need.coming), "" if needs else "it is not known who ends that")
        if not coming and self._liveness.child is not None and any(need.anyone for need in needs):
            process, child = self._liveness.child
            return f"child process {child.pid} of {names_of([process])} may end that"
        return coming

    def _find_stragglers(self, reached: set[WaitNode]) -> list[WaitNode]:
        by_group: dict[str, list[WaitNode]] = {}
        for node in self.leaves:
            if goes_on(node) and node in reached and node.process.role == "worker":
                by_group.setdefault(node.process.group, []).append(node)
        graph = self._liveness.graph
        ordered = sorted(by_group.items(), key=lambda each: -max(age_of(graph, node) or 0.0 for node in each[1]))
        for group, leaves in ordered:
            late = {node.process.endpoint for node in leaves}
            ages = [age for node in leaves if (age := age_of(graph, node)) is not None]
            count = self._compare(group, late) if min(ages, default=PATIENCE_S) >= PATIENCE_S else 0
            if count >= len(late):
                return leaves
        self.others = ""
        return []

    def _compare(self, group: str, late: set[int]) -> int:
        if arrived := self._arrived(group, late):
            kinds = sorted({node.wait.kind for node in arrived if node.wait is not None})
            count = len({node.process.endpoint for node in arrived})
            self.others = f"{_ranks(count)} arrived in {' and '.join(kinds)}"
        else:
            count = self._finished(group, late)
            self.others = f"{_ranks(count)} finished"
        return count

    def _arrived(self, group: str, late: set[int]) -> list[WaitNode]:
        return [
            node
            for node in self._liveness.graph.nodes
            if node.process.group == group
            and node.waits
            and node.wait is not None
            and is_in_collective(node.wait)
            and any(need.process and need.process.endpoint in late for need in self._liveness.needs.of(node))
        ]

    def _finished(self, group: str, late: set[int]) -> int:
        """Return how many ranks have answered an awaited call that the ``late`` ranks have not answered."""
        graph = self._liveness.graph
        for node in graph.nodes:
            if node.process.role != "driver" or node.wait is None or node.wait.kind != "call":
                continue
            open_ = {target.endpoint for target in node.wait.targets if target.kind is TargetKind.CALL}
            asked = _ASKED.search(node.wait.what)
            whose = {graph.processes[each].group for each in open_ if each in graph.processes}
            if asked is not None and late <= open_ and whose == {group}:
                return int(asked[1]) - len(open_)
        return 0


def blocks_its_loop(node: WaitNode) -> bool:
    """True if an activity (a callback or task of the loop) keeps its process from answering in time."""
    if node.activity is None or not node.process.trouble:
        return False
    dumped = [] if node.process.answered else node.activity.stack
    return node.activity.blocks or any(frame.function.rpartition(".")[2] == "_run_once" for frame in dumped)


def goes_on(node: WaitNode) -> bool:
    """True if a node runs; a process that does not answer counts as running at the place that its stacks show."""
    process = node.process
    if process.answered or is_stopped(process):
        return node.activity is not None and node.activity.state in (ActivityState.RUNNING, ActivityState.SLEEPING)
    return node.activity is not None or not process.activities


def _ranks(count: int) -> str:
    return f"{count} other {'rank has' if count == 1 else 'ranks have'}" if count else ""
