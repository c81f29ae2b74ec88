"""The activities of a run that continue or may be freed, as a least fixed point; all others are hopeless.

Initially, activities are alive if they run or sleep, or if too little is known about them. A waiting activity becomes
alive once live activities may meet all of its needs (``needs.py``). The remaining activities wait only for each other;
they form a closed set that nothing in the report can free.

Two reports make this certain. Processes report at slightly different moments, so one process may show the state before
an event, and another process the state after it. But if activities have the same wait in both reports, and it is longer
in the second, there was a moment between the two reports at which all of them were waiting.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from enum import StrEnum
from typing import Any, Final

from rlinf_async._inspection.state.collective_needs import Needs
from rlinf_async._inspection.state.needs import Need
from rlinf_async._inspection.state.run_report import ActivityState, ChildProcess, ProcessReport, RunReport, TargetKind
from rlinf_async._inspection.state.wait_graph import WaitNode, is_in_its_users_hands, is_stopped

# Seconds after which a wait may count as hopeless; a message in transit may still end a younger wait.
PATIENCE_S: Final = 2.0

# A deadline that is more than this number of seconds away does not count, because a call with a timeout of an hour may
# be stuck all that time.
FAR_DEADLINE_S: Final = 60.0

YOUNG_CHILD_S: Final = 60.0  # a younger child process may still be starting, even if it uses no CPU

# Targets of waits that may be ended by work that is not visible as an activity, such as data copies or C threads.
_OF_WORK: Final = frozenset(
    (TargetKind.MESSAGE, TargetKind.QUEUE, TargetKind.COLLECTIVE, TargetKind.WEIGHTS, TargetKind.LOCAL)
)


class Why(StrEnum):
    """The reason why an activity is alive."""

    RUNS = "runs"
    SLEEPS = "sleeps"
    DEADLINE = "waits until its deadline"
    SILENT = "is in a process that does not answer"
    BEGINS = "begins a call"
    USER = "is in its user's hands"
    UNKNOWN = "waits for something that is not known"
    YOUNG = "has just begun to wait"
    CHANGED = "has gone on meanwhile"
    WORKS = "is in a process that works"
    FREED = "may be freed"
    STOPPED = "is stopped"


class Liveness:
    """The activities of one report that are live, and why each is.

    Args:
        earlier: liveness in the previous report; None if there is none.
        working: endpoints whose processes used CPU time between the two reports.
        stopped_go_on: True if stopped processes count as alive.

    Attributes:
        anyone: True if some live or unknown activity may take any of the run's possible actions.
        child: child process that may act in the run, with its parent; None if there is none.
        hopeless: nodes that are not ``alive``, except idle nodes.
    """

    def __init__(
        self,
        needs: Needs,
        earlier: Liveness | None = None,
        working: Collection[int] = (),
        *,
        stopped_go_on: bool = False,
    ) -> None:
        self.needs = needs
        self.graph = needs.graph
        report = needs.graph.report
        self._working = frozenset(working)
        self._stopped_go_on = stopped_go_on
        self._before = None if earlier is None else {_key(node): node.age for node in earlier.hopeless}
        # A run without a driver is either starting or ending.
        self.anyone = bool(report.missing) or not any(process.role == "driver" for process in report.processes)
        self.child = _child_that_acts(report, None if earlier is None else earlier.graph.report)
        self.anyone |= self.child is not None
        if earlier is not None:
            self.anyone |= _moves(earlier.graph.report) != _moves(report)
        self.alive: dict[WaitNode, Why] = {}
        self.hopeless: list[WaitNode] = self._spread()

    def __repr__(self) -> str:
        return f"<Liveness of {self.graph!r} [{len(self.alive)} alive, {len(self.hopeless)} hopeless]>"

    def _spread(self) -> list[WaitNode]:
        at_first = {node: why for node in self.graph.nodes if (why := self._at_first(node)) is not None}
        rest = self.graph.nodes
        found = -1
        while len(self.alive) != found:
            found = len(self.alive)
            still = []
            for node in rest:
                why = at_first.get(node) or (Why.FREED if self._may_be_freed(node) else None)
                if why is not None:
                    self.alive[node] = why
                    self.anyone = True
                else:
                    still.append(node)
            rest = still
        return [node for node in rest if node.activity is not None]

    # -- at first -----------------------------------------------------------------------------------------------

    def _at_first(self, node: WaitNode) -> Why | None:
        process, activity = node.process, node.activity
        if is_stopped(process):
            return Why.STOPPED if self._stopped_go_on else None
        if not process.answered:
            return Why.SILENT
        if activity is None:
            return Why.USER if is_in_its_users_hands(process) else Why.BEGINS
        if activity.state is ActivityState.SLEEPING:
            return Why.SLEEPS
        if activity.state is ActivityState.RUNNING:
            return Why.RUNS
        return self._hope(node) if node.waits else None

    def _hope(self, node: WaitNode) -> Why | None:
        """Return why a wait will end by itself, or is too young to be called hopeless; None if neither holds."""
        needs = self.needs.of(node)
        if node.wait is not None and node.wait.left is not None and node.wait.left <= FAR_DEADLINE_S:
            return Why.DEADLINE
        if not needs:
            return Why.UNKNOWN
        if node.age is not None and node.age < PATIENCE_S:
            return Why.YOUNG
        if self._before is not None and not self._is_as_before(node, self._before):
            return Why.CHANGED
        if node.process.endpoint in self._working and any(need.target.kind in _OF_WORK for need in needs):
            return Why.WORKS
        return None

    def _is_as_before(self, node: WaitNode, before: dict[Hashable, float | None]) -> bool:
        key = _key(node)
        if key not in before:
            return False
        age = before[key]
        return age is None or node.age is None or node.age > age

    # -- afterwards -----------------------------------------------------------------------------------------------

    def _may_be_freed(self, node: WaitNode) -> bool:
        if not node.waits:
            return False
        met = (self.may_be_met(need) for need in self.needs.of(node))
        return all(met) if node.wait is None or node.wait.every else any(met)

    def may_be_met(self, need: Need) -> bool:
        return bool(need.coming) or (need.anyone and self.anyone) or any(node in self.alive for node in need.nodes)


def _key(node: WaitNode) -> Hashable:
    process, activity, wait = node.process, node.activity, node.wait
    if activity is None:
        return process.endpoint, process.pid
    served = (activity.method, activity.source, activity.number)
    what = None if wait is None else (wait.kind, wait.what, tuple(wait.targets))
    return process.endpoint, process.pid, activity.name, activity.state, served, tuple(activity.awaits), what


def _child_that_acts(report: RunReport, before: RunReport | None) -> tuple[ProcessReport, ChildProcess] | None:
    """Return a child process so young that it may still join, or one that has used CPU time since the last report."""
    earlier = {} if before is None else {child.pid: child.cpu for each in before.processes for child in each.children}
    for process in report.processes:
        for child in process.children:
            if child.age < YOUNG_CHILD_S or (before is not None and child.cpu > earlier.get(child.pid, -1.0)):
                return process, child
    return None


def _moves(report: RunReport) -> Any:
    """Return facts that change whenever an activity makes progress; idle activities may come and go."""
    processes = {
        (process.endpoint, process.pid): (
            frozenset((call.source, call.number) for call in process.calls),
            frozenset(activity.name for activity in process.activities if activity.state is not ActivityState.IDLE),
        )
        for process in report.processes
    }
    queues = {(queue.number, queue.node): (queue.items, queue.nbytes, queue.full) for queue in report.queues}
    return processes, queues, report.ended
