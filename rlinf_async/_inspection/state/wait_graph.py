"""Graph of a run's waits: what its processes do, as nodes, and which activity serves which call.

``needs.py`` has the edges: what a waiting activity needs of others before it can go on.  Neither depends on what is
alive (``liveness.py``): a report alone decides.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from rlinf_async._inspection.state.run_report import (
    IN_DEBUGGER,
    Activity,
    OpenCall,
    ProcessReport,
    QueueReport,
    RunReport,
    State,
    Target,
    TargetKind,
    Wait,
)

MAIN_THREAD: Final = "thread MainThread"
"""Activity that runs a worker's ``def`` methods, one at a time; meanwhile its loop stands still."""

RESTART: Final = "restart"
"""Kind of the wait of an activity that brings ranks of a group back."""

BEGINS_WITHIN_S: Final = 2.0
"""Age from which on a call that has not begun is held up by other calls."""


@dataclass(frozen=True, eq=False)
class Node:
    """An activity; or, with None, a process of whose activities nothing is known."""

    process: ProcessReport
    activity: Activity | None

    def __repr__(self) -> str:
        return f"<Node {self.process.name} {self.name or '?'}>"

    @property
    def name(self) -> str:
        return "" if self.activity is None else self.activity.name

    @property
    def wait(self) -> Wait | None:
        return None if self.activity is None else self.activity.wait

    @property
    def waits(self) -> bool:
        return self.activity is not None and self.activity.state is State.WAITING

    @property
    def serves(self) -> bool:
        return self.activity is not None and bool(self.activity.method)

    @property
    def age(self) -> float | None:
        """Seconds for which it has done what it does; None where that is not known."""
        if self.activity is None or self.activity.age is not None:
            return None if self.activity is None else self.activity.age
        return (self.activity.wait.age or None) if self.activity.wait else None


class WaitGraph:
    """The activities of a report, by process and by the call that they serve.

    Args:
        asker: endpoint of a driver that, where it does nothing besides, is not taken for one that may do anything.
    """

    def __init__(self, report: RunReport, asker: int = 0) -> None:
        self.report = report
        self._asker = asker
        self.processes = {process.endpoint: process for process in report.processes}
        self.nodes: list[Node] = []
        self._of: dict[int, list[Node]] = defaultdict(list)
        self._serving: dict[tuple[int, int, int], list[Node]] = defaultdict(list)
        """By worker, caller and number of the call; so are those below."""
        self._calls: dict[tuple[int, int, int], OpenCall] = {}
        self.members: dict[str, dict[int, ProcessReport]] = defaultdict(dict)
        """Workers by group and rank."""
        for process in self.processes.values():
            ended = bool(self.end_of(process))
            if process.role == "worker" and process.group:
                members = self.members[process.group]
                if not ended or process.rank not in members:  # a group may have been made anew
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
            found += [Node(process, each) for each in process.activities if each.state is not State.IDLE]
        for node in found:
            if node.activity is not None and node.serves:
                self._serving[place, node.activity.source, node.activity.number].append(node)
        is_free = is_in_its_users_hands(process) and place != self._asker
        if not process.answered or is_stopped(process) or self.begins(process) or is_free:
            found.append(Node(process, None))
        self.nodes += found

    # -- processes ----------------------------------------------------------------------------------------------

    def of(self, process: ProcessReport) -> list[Node]:
        """Its nodes; none if it is idle or has ended."""
        return self._of[process.endpoint]

    def end_of(self, process: ProcessReport) -> str:
        """How it has ended; empty if it lives."""
        ended = process.trouble if process.trouble.startswith("ended") else ""
        return self.report.ended.get(process.endpoint) or ended

    def begins(self, process: ProcessReport) -> bool:
        """Whether it has a call that no activity serves yet, and that no other call holds up."""
        return any(
            not self.serving(process, call.source, call.number) and not self.queue(process, call)
            for call in process.calls
        )

    def queues(self, target: Target) -> list[QueueReport]:
        """The queues of a channel, on all nodes."""
        return [queue for queue in self.report.queues if queue.number == target.number]

    def supervisions(self, group: str) -> tuple[Node, ...]:
        """Return the activities that bring ranks of a group back."""
        return tuple(node for node in self.nodes if is_supervision(node.activity) and node.name == supervision(group))

    # -- calls --------------------------------------------------------------------------------------------------

    def serving(self, process: ProcessReport, source: int, number: int) -> list[Node]:
        """The activity that serves a call, without those that it waits for, which serve it as well."""
        found = self._serving.get((process.endpoint, source, number), [])
        inner = {name for node in found if node.activity is not None for name in _names_of_others(node.activity)}
        return [node for node in found if node.name not in inner] or found

    def open_call(self, process: ProcessReport, source: int, number: int) -> OpenCall | None:
        """A call that its daemon has passed on, and has seen no answer of."""
        return self._calls.get((process.endpoint, source, number))

    def call_of(self, node: Node) -> OpenCall | None:
        """The call that an activity serves."""
        if node.activity is None or not node.serves:
            return None
        return self.open_call(node.process, node.activity.source, node.activity.number)

    def queue(self, process: ProcessReport, call: OpenCall) -> tuple[Node, ...]:
        """Activities of which one has to end before a call begins; none where it begins by itself."""
        method = self.method(process)
        if method is not None:
            return (method,)
        # No ``def`` method is in its way: it begins, unless as many coroutines run as may at once.
        return tuple(node for node in self.of(process) if node.serves) if call.age >= BEGINS_WITHIN_S else ()

    def method(self, process: ProcessReport) -> Node | None:
        """The ``def`` method that runs; no other call begins meanwhile."""
        return next((node for node in self.of(process) if node.serves and node.name == MAIN_THREAD), None)


def is_stopped(process: ProcessReport) -> bool:
    """Whether SIGSTOP or a debugger keeps it from running."""
    return any(part.startswith(("stopped", IN_DEBUGGER)) for part in process.trouble.split(", "))


def supervision(group: str) -> str:
    """Return the name of the activity that brings ranks of a group back, in the process of its owner."""
    return f"supervision of '{group}'"


def is_supervision(activity: Activity | None) -> bool:
    return activity is not None and activity.wait is not None and activity.wait.kind == RESTART


def is_in_its_users_hands(process: ProcessReport) -> bool:
    """Whether it is a driver that does nothing and waits for nothing: a notebook between two cells."""
    of_user = (activity for activity in process.activities if not is_supervision(activity))
    return process.role == "driver" and all(activity.state is State.IDLE for activity in of_user)


def _names_of_others(activity: Activity) -> list[str]:
    """The activities of its process that it waits for."""
    targets = [] if activity.wait is None else activity.wait.targets
    return [*activity.awaits, *(target.name for target in targets if target.kind is TargetKind.LOCAL)]
