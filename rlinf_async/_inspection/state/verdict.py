"""The verdict on a run, in words: whether it is stuck, which processes are the cause, and what each participant awaits.

Verdicts are tried in this order. Stuck runs: a circle of waits (deadlock); a wait that no live activity could end
(nobody left); a stopped process that others wait for (stopped); a driver that sleeps on its event loop while nothing
else runs (blocked). Other runs: a few ranks that others wait for (straggler); running activities (busy); or none
(idle).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rlinf_async._core.printable import printable
from rlinf_async._inspection.state.advice import advice_on, on_blocked_loops
from rlinf_async._inspection.state.collective_needs import Needs
from rlinf_async._inspection.state.descriptions import lines_of, names_of, seconds, sentence
from rlinf_async._inspection.state.entanglement import Core, by_age, core_of, stopped_ones, waiting_for
from rlinf_async._inspection.state.liveness import Liveness
from rlinf_async._inspection.state.progress import Progress, goes_on
from rlinf_async._inspection.state.run_report import IN_DEBUGGER, LOOP_BLOCKED, ActivityState, ProcessReport, RunReport
from rlinf_async._inspection.state.wait_graph import WaitGraph, WaitNode, is_stopped


class VerdictKind(StrEnum):
    DEADLOCK = "deadlock"
    NOBODY_LEFT = "nobody left"
    STOPPED = "stopped"
    BLOCKED = "blocked"
    STRAGGLER = "straggler"
    BUSY = "busy"
    IDLE = "idle"


# CPU seconds per half second above which a process counts as working; answering the inspection also takes some time.
_MIN_WORK_S: Final = 0.05

_STUCK: Final = frozenset((VerdictKind.DEADLOCK, VerdictKind.NOBODY_LEFT, VerdictKind.STOPPED, VerdictKind.BLOCKED))

# Age above which a sleep that blocks a driver's loop counts as stuck, if there is no other activity in the run.
BLOCKED_S: Final = 300.0

_MAX_PIDS: Final = 8


@dataclass(frozen=True)
class Verdict:
    """A verdict in words.

    Attributes:
        lines: lines about all participants and the processes that wait for them; ranks in the same state share one.
        advice: actions that would help.
        participants: endpoints of the processes in the headline.
        is_plain: True if all processes work normally, so that a terminal need only show the headline.
    """

    kind: VerdictKind
    headline: str
    lines: list[str] = dataclasses.field(default_factory=list)
    advice: list[str] = dataclasses.field(default_factory=list)
    participants: list[int] = dataclasses.field(default_factory=list)
    is_plain: bool = False

    @property
    def is_stuck(self) -> bool:
        return self.kind in _STUCK

    def to_data(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "kind": str(self.kind), "is_stuck": self.is_stuck}

    def __str__(self) -> str:
        return render(self)


def judge(report: RunReport, before: RunReport | None = None, asker: int = 0) -> Verdict:
    """Return the verdict on a run.

    Args:
        before: report on the same run, half a second earlier; without it, no run is called stuck.
        asker: endpoint of a driver that requests the verdict. Although the driver is otherwise idle, it may still put,
            publish or call, so its later actions are unknown. However, they cannot end a circle of other waits.
    """
    working = _working(report, before)
    now = Needs(WaitGraph(report))
    found = _stuck(now, None if before is None else Needs(WaitGraph(before)), working)
    if found is None and asker and before is not None:
        found = _stuck(Needs(WaitGraph(report, asker)), Needs(WaitGraph(before, asker)), working)
        found = found if found is not None and found.kind is VerdictKind.DEADLOCK else None
    if found is None:
        return _going_on(Liveness(now, stopped_go_on=True), working, before)
    if before is None:
        headline = f"asked once, which does not prove it: {found.headline}"
        return dataclasses.replace(found, kind=VerdictKind.BUSY, headline=headline)
    return found


def render(verdict: Verdict) -> str:
    """Return lines for a terminal, without markup."""
    lines = [] if verdict.is_plain else verdict.lines
    text = [verdict.headline, *(f"  {line}" for line in lines), *(f"  -> {line}" for line in verdict.advice)]
    return "\n".join([f"{verdict.kind}: {printable(text[0])}", *map(printable, text[1:])])


def _working(report: RunReport, before: RunReport | None) -> set[int]:
    """Return the processes that used CPU time between two reports, and may therefore be transferring data."""
    earlier = {} if before is None else {process.endpoint: process.cpu for process in before.processes}
    return {
        process.endpoint
        for process in report.processes
        if process.cpu - earlier.get(process.endpoint, process.cpu) > _MIN_WORK_S
    }


def _stuck(now: Needs, before: Needs | None, working: Collection[int]) -> Verdict | None:
    """Return the verdict on a run that is stuck even if stopped processes continue, or else because of them."""
    earlier = None if before is None else Liveness(before, stopped_go_on=True)
    liveness = Liveness(now, earlier, working, stopped_go_on=True)
    core = core_of(liveness)
    if core is not None:
        return _entangled(liveness, core)
    if not any(is_stopped(process) for process in now.graph.report.processes):
        return None
    earlier = None if before is None else Liveness(before)
    return _stopped(Liveness(now, earlier, working), earlier)


def _entangled(liveness: Liveness, core: Core) -> Verdict:
    graph = liveness.graph
    others = waiting_for(liveness, core.nodes)
    if core.is_circle:
        kind = VerdictKind.DEADLOCK
        headline = f"{names_of(node.process for node in core.nodes)} {_wait_for(core)}"
    else:
        kind = VerdictKind.NOBODY_LEFT
        headline = f"{sentence(graph, core.nodes)}; nobody is left who could end that"
    lines = lines_of(graph, core.nodes) + lines_of(graph, others)
    return Verdict(kind, headline, lines, advice_on(liveness, core), _endpoints(core.nodes))


def _wait_for(core: Core) -> str:
    if len({node.process.endpoint for node in core.nodes}) == 1:
        return "waits for itself" if len(core.nodes) == 1 else "waits for itself: its tasks and threads for each other"
    return "wait for each other"


def _stopped(liveness: Liveness, earlier: Liveness | None) -> Verdict | None:
    """Return the verdict on stopped processes that others wait for, or on a stopped driver if nothing else runs."""
    graph = liveness.graph
    stopped = stopped_ones(liveness)
    is_drivers = any(node.process.role == "driver" for node in stopped) and not any(map(_acts, liveness.alive))
    if not liveness.hopeless and not is_drivers:
        return None
    pids = [node.process.pid for node in stopped]
    if earlier is not None and not {node.process.pid for node in stopped_ones(earlier)}.issuperset(pids):
        return None
    waiting = by_age(liveness.hopeless)
    waits = f", and {names_of(node.process for node in waiting)} cannot go on" if waiting else ""
    debugged = [node.process for node in stopped if node.process.trouble.startswith(IN_DEBUGGER)]
    how = IN_DEBUGGER if len(debugged) == len(stopped) else "stopped"
    headline = f"{names_of(node.process for node in stopped)} {'is' if len(pids) == 1 else 'are'} {how}{waits}"
    advice = [f"rlinf-ctl debug {process.name} attaches; after `c` or `q` it goes on" for process in debugged[:1]]
    if pids := [pid for pid in pids if pid not in {process.pid for process in debugged}]:
        advice.append(f"kill -CONT {' '.join(map(str, pids[:_MAX_PIDS]))} resumes what no debugger has stopped")
    lines = lines_of(graph, stopped) + lines_of(graph, waiting)
    return Verdict(VerdictKind.STOPPED, headline, lines, [*advice, *_besides(liveness)], _endpoints(stopped))


def _acts(node: WaitNode) -> bool:
    """True for the node of a driver or a call; background activities of ranks do not finish a run."""
    return node.process.role == "driver" or node.activity is None or node.serves


def _besides(liveness: Liveness) -> list[str]:
    """Return advice on waits for running processes, which may remain even if the stopped processes continue."""
    core = core_of(liveness)
    if core is None:
        return []
    needs = [each for each in core.needs if each[1].process is not None and not is_stopped(each[1].process)]
    return advice_on(liveness, dataclasses.replace(core, needs=needs, is_circle=False))


def _going_on(liveness: Liveness, working: Collection[int], before: RunReport | None) -> Verdict:
    graph, progress = liveness.graph, Progress(liveness)
    if before is not None and (blocked := _blocked(liveness, progress, working)) is not None:
        return blocked
    stopped = [node for node in graph.nodes if is_stopped(node.process)]
    if progress.stragglers:
        headline = f"{sentence(graph, progress.stragglers)}; {progress.others}"
        lines = _lines(liveness, progress.stragglers, progress.waiting, stopped)
        return Verdict(VerdictKind.STRAGGLER, headline, lines, [], _endpoints(progress.stragglers))
    lines = _lines(liveness, progress.leaves, progress.waiting, stopped)
    if progress.leaves:
        is_plain = not stopped and all(map(_works, progress.leaves))
        reason = f"; {progress.reason}" if progress.reason else _others(progress) if is_plain else ""
        headline, advice = f"{sentence(graph, progress.leaves)}{reason}", list(on_blocked_loops(progress.leaves))
        return Verdict(VerdictKind.BUSY, headline, lines, advice, _endpoints(progress.leaves), is_plain)
    if progress.waiting:
        return Verdict(
            VerdictKind.BUSY, "what is waited for may be on its way", lines, [], _endpoints(progress.waiting)
        )
    return Verdict(VerdictKind.IDLE, f"nothing runs, and nothing waits{_without_driver(graph.report)}", lines)


def _blocked(liveness: Liveness, progress: Progress, working: Collection[int]) -> Verdict | None:
    """Return the verdict on a driver that has slept on its event loop for a long time while nothing else happens.

    A driver that computes, reads, or waits for a thread on its loop is not stuck: an evaluation may take any time.
    """
    graph = liveness.graph
    node = progress.leaves[0] if progress.leaves else None
    if node is None or node.activity is None or node.process.trouble != LOOP_BLOCKED or not node.activity.blocks:
        return None
    is_asleep = node.activity.state is ActivityState.SLEEPING and (node.age or 0.0) >= BLOCKED_S
    others = (other for other in graph.nodes if other is not node and (other.activity is None or goes_on(other)))
    if not is_asleep or any(others) or working or liveness.child is not None or graph.report.missing:
        return None
    lines = _lines(liveness, [node], progress.waiting)
    headline = f"{sentence(graph, [node])}; nothing else runs"
    return Verdict(VerdictKind.BLOCKED, headline, lines, list(on_blocked_loops([node])), _endpoints([node]))


def _works(node: WaitNode) -> bool:
    """True if a node computes or sleeps in a process that answers, and waits for nothing outside the run."""
    return node.activity is not None and node.wait is None and not node.process.trouble and not node.waits


def _others(progress: Progress) -> str:
    first = progress.leaves[0].process
    working = _processes(node for node in progress.leaves if node.process.group != first.group)
    waiting = _processes(progress.waiting)
    works = f"; {names_of(working)} {'works' if len(working) == 1 else 'work'} too" if working else ""
    waits = f"; {names_of(waiting)} {'waits' if len(waiting) == 1 else 'wait'}" if waiting else ""
    return works + waits


def _processes(nodes: Iterable[WaitNode]) -> list[ProcessReport]:
    return list({node.process.endpoint: node.process for node in nodes}.values())


def _without_driver(report: RunReport) -> str:
    if any(process.role == "driver" for process in report.processes):
        return ""
    if not report.left:
        return "; the driver has ended, or has not come yet"
    last = report.left[0]
    who = f"the driver ({last.node_name}, pid {last.pid})"
    return f"; {who} has left the run for {seconds([last.age])}, and its process has not ended"


def _lines(liveness: Liveness, *parts: Sequence[WaitNode]) -> list[str]:
    return [line for part in parts for line in lines_of(liveness.graph, part)]


def _endpoints(nodes: Sequence[WaitNode]) -> list[int]:
    return list(dict.fromkeys(node.process.endpoint for node in nodes))
