"""The graph of a run's waits: its nodes are activities, with the calls that they serve.

The edges are the needs of waiting activities (``needs.py``). Nodes and edges depend only on the report, not on which
activities are live (``liveness.py``).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from rlinf_async._inspection.state.run_report import (
    IN_DEBUGGER,
    Activity,
    ActivityState,
    OpenCall,
    ProcessReport,
    QueueReport,
    RunReport,
    Target,
    TargetKind,
    Wait,
)

# The activity that runs a worker's ``def`` methods, one at a time, while the worker's loop does not run.
MAIN_THREAD: Final = "thread MainThread"

RESTART: Final = "restart"  # the kind of wait of the activity that restarts a group's ranks

# A call that has not begun by this age is considered to be blocked by other calls.
BEGINS_WITHIN_S: Final = 2.0


@dataclass(frozen=True, eq=False)
class WaitNode:
    """An activity or, if it is None, a process whose activities are unknown."""

    process: ProcessReport
    activity: Activity | None

    def __repr__(self) -> str:
        return f"<WaitNode {self.process.name} {self.name or '?'}>"

    @property
    def name(self) -> str:
        return "" if self.activity is None else self.activity.name

    @property
    def wait(self) -> Wait | None:
        return None if self.activity is None else self.activity.wait

    @property
    def waits(self) -> bool:
        return self.activity is not None and self.activity.state is ActivityState.WAITING

    @property
    def serves(self) -> bool:
        return self.activity is not None and bool(self.activity.method)

    @property
    def age(self) -> float | None:
        """Return the seconds spent in the current state; None if unknown."""
        if self.activity is None or self.activity.age is not None:
            return None if self.activity is None else self.activity.age
        return (self.activity.wait.age or None) if self.activity.wait else None


class WaitGraph:
    """The activities of a report, by process and by call. If driver ``asker`` is idle, it counts as unable to act."""

    def __init__(self, report: RunReport, asker: int = 0) -> None:
        self.report = report
        self._asker = asker
        self.processes = {process.endpoint: process for process in report.processes}
        self.nodes: list[WaitNode] = []
        self._of: dict[int, list[WaitNode]] = defaultdict(list)
        self._serving: dict[tuple[int, int, int], list[WaitNode]] = defaultdict(list)
        self._calls: dict[tuple[int, int, int], OpenCall] = {}
        self.members: dict[str, dict[int, ProcessReport]] = defaultdict(dict)  # workers by group and rank
        for process in self.processes.values():
            ended = bool(self.end_of(process))
            if process.role == "worker" and process.group:
                members = self.members[process.group]
                if not ended or process.rank not in members:  # a later group may reuse the name
                    members[process.rank] = process
            if not ended:
                self._add(process)

    def __repr__(self) -> str:
        return f"<WaitGraph of {self.report.run} [{len(self.nodes)} nodes]>"

    def _add(self, process: ProcessReport) -> None:
        place = process.endpoint
        self._calls |= {(place, call.source, call.number): call for call in process.calls}
        found = self._of[place]
        if not is_stopped(process):
            found += [WaitNode(process, each) for each in process.activities if each.state is not ActivityState.IDLE]
        for node in found:
            if node.activity is not None and node.serves:
                self._serving[place, node.activity.source, node.activity.number].append(node)
        is_free = is_in_its_users_hands(process) and place != self._asker
        if not process.answered or is_stopped(process) or self.begins(process) or is_free:
            found.append(WaitNode(process, None))
        self.nodes += found

    # -- processes ----------------------------------------------------------------------------------------------

    def of(self, process: ProcessReport) -> list[WaitNode]:
        """Return the nodes of a process; empty if the process is idle or has ended."""
        return self._of[process.endpoint]

    def end_of(self, process: ProcessReport) -> str:
        """Return how a process ended; empty if it is alive."""
        ended = process.trouble if process.trouble.startswith("ended") else ""
        return self.report.ended.get(process.endpoint) or ended

    def begins(self, process: ProcessReport) -> bool:
        """True if a call of the process is about to begin: no activity serves it yet, and no other call blocks it."""
        return any(
            not self.serving(process, call.source, call.number) and not self.queue(process, call)
            for call in process.calls
        )

    def queues(self, target: Target) -> list[QueueReport]:
        return [queue for queue in self.report.queues if queue.number == target.number]

    def supervisions(self, group: str) -> tuple[WaitNode, ...]:
        return tuple(node for node in self.nodes if is_supervision(node.activity) and node.name == supervision(group))

    # -- calls --------------------------------------------------------------------------------------------------

    def serving(self, process: ProcessReport, source: int, number: int) -> list[WaitNode]:
        found = self._serving.get((process.endpoint, source, number), [])
        inner = {name for node in found if node.activity is not None for name in _names_of_others(node.activity)}
        return [node for node in found if node.name not in inner] or found

    def open_call(self, process: ProcessReport, source: int, number: int) -> OpenCall | None:
        """Return the call if the daemon has forwarded it to the process and it is not answered yet, else None."""
        return self._calls.get((process.endpoint, source, number))

    def call_of(self, node: WaitNode) -> OpenCall | None:
        if node.activity is None or not node.serves:
            return None
        return self.open_call(node.process, node.activity.source, node.activity.number)

    def queue(self, process: ProcessReport, call: OpenCall) -> tuple[WaitNode, ...]:
        """Return activities, one of which must end before a call begins; empty if the call can begin."""
        method = self.method(process)
        if method is not None:
            return (method,)
        # No ``def`` method blocks the call, so it begins immediately, unless the limit on concurrent coroutines has
        # been reached.
        return tuple(node for node in self.of(process) if node.serves) if call.age >= BEGINS_WITHIN_S else ()

    def method(self, process: ProcessReport) -> WaitNode | None:
        """Return the running ``def`` method, which blocks all other calls; None if none is running."""
        return next((node for node in self.of(process) if node.serves and node.name == MAIN_THREAD), None)


def is_stopped(process: ProcessReport) -> bool:
    return any(part.startswith(("stopped", IN_DEBUGGER)) for part in process.trouble.split(", "))


def supervision(group: str) -> str:
    """Return the name of the activity in the owner's process that restarts a group's ranks."""
    return f"supervision of '{group}'"


def is_supervision(activity: Activity | None) -> bool:
    return activity is not None and activity.wait is not None and activity.wait.kind == RESTART


def is_in_its_users_hands(process: ProcessReport) -> bool:
    """True for a driver that neither runs nor waits, such as a notebook between two cells."""
    of_user = (activity for activity in process.activities if not is_supervision(activity))
    return process.role == "driver" and all(activity.state is ActivityState.IDLE for activity in of_user)


def _names_of_others(activity: Activity) -> list[str]:
    targets = [] if activity.wait is None else activity.wait.targets
    return [*activity.awaits, *(target.name for target in targets if target.kind is TargetKind.LOCAL)]
