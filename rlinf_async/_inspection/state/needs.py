"""The needs of waiting activities: the required action, and the process that must take it.

When in doubt, a need counts as about to be met (``coming``), so that a healthy run is never called stuck: an answer may
be in transit, a process group may have members elsewhere, a socket may fill a queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rlinf_async._inspection.state.collectives import is_collective, is_point_to_point
from rlinf_async._inspection.state.run_report import ProcessReport, Target, TargetKind, Wait
from rlinf_async._inspection.state.wait_graph import MAIN_THREAD, WaitGraph, WaitNode, is_stopped

LARGE_BYTES: Final = 64 << 20  # size above which a queued item may be in transit for seconds

# Functions of asyncio's locks and queues; a wait in one of them can be ended only by an activity of the same process.
_GIVEN_BACK: Final = frozenset(("acquire", "put", "join"))


@dataclass(frozen=True)
class Need:
    """A condition for an activity to continue.

    Attributes:
        target: the target of the wait.
        process: process that must act; None if it need not be a specific process.
        nodes: nodes, one of which must continue.
        anyone: True if any other activity of the run could act instead.
        coming: reason why the need will be met anyway; empty if that is not certain.
        ended: description of how the process that must act has ended; empty if it is alive.
        arrived: True if the process is in a collective too, but will not meet the waiting process there.
    """

    target: Target
    process: ProcessReport | None = None
    nodes: tuple[WaitNode, ...] = ()
    anyone: bool = False
    coming: str = ""
    ended: str = ""
    arrived: bool = False


def needs_of(graph: WaitGraph, node: WaitNode) -> list[Need]:
    """Return all needs of a waiting activity, except those in collectives (``collective_needs.py``)."""
    if node.activity is None or not node.waits:
        return []
    found = [_of_activity(graph, Target(TargetKind.LOCAL, name=name), node) for name in node.activity.awaits]
    if node.wait is not None and not is_in_collective(node.wait):
        found += [_of_target(graph, target, node, node.wait) for target in node.wait.targets]
    return found


def is_in_collective(wait: Wait) -> bool:
    """True if the wait is for other ranks in torch.distributed, not in this framework's own ``send`` and ``recv``."""
    if not wait.targets:
        return is_collective(wait.kind) and not is_point_to_point(wait.kind)
    return any(target.kind is TargetKind.COLLECTIVE for target in wait.targets)


def action_of(graph: WaitGraph, target: Target, process: ProcessReport, node: WaitNode | None) -> Need:
    others = tuple(each for each in graph.of(process) if each is not node)
    is_free = process.role == "worker" and not is_stopped(process) and graph.method(process) is None
    return Need(target, process, others, anyone=is_free)


def _of_target(graph: WaitGraph, target: Target, node: WaitNode, wait: Wait) -> Need:
    match target.kind:
        case TargetKind.CALL:
            return _of_call(graph, target, node)
        case TargetKind.MESSAGE:
            return _of_message(graph, target, node, wait)
        case TargetKind.QUEUE:
            return _of_queue(graph, target, wait)
        case TargetKind.LOCK:
            return _of_lock(graph, target, node)
        case TargetKind.WEIGHTS:
            return _of_weights(graph, target, node)
        case TargetKind.LOCAL:
            return _of_activity(graph, target, node)
        case TargetKind.NAME:
            return Need(target, anyone=True)
        case TargetKind.RESTART:
            nodes = graph.supervisions(target.name)
            return Need(target, nodes[0].process if nodes else None, nodes, anyone=not nodes)
        case _:
            return Need(target, coming="the framework works on it")


def _of_call(graph: WaitGraph, target: Target, node: WaitNode) -> Need:
    process = graph.processes.get(target.endpoint)
    if process is None or graph.end_of(process):
        return Need(target, process, coming="its end is told to those who wait for it")
    if is_stopped(process) or not process.answered:
        return Need(target, process, tuple(graph.of(process)))
    source = node.process.endpoint
    if serving := graph.serving(process, source, target.number):
        return Need(target, process, tuple(serving))
    call = graph.open_call(process, source, target.number)
    if call is None:
        return Need(target, process, coming="the call or its answer is under way")
    queue = graph.queue(process, call)
    return Need(target, process, queue, coming="" if queue else "the call begins")


def _of_message(graph: WaitGraph, target: Target, node: WaitNode, wait: Wait) -> Need:
    process = graph.processes.get(target.endpoint)
    if process is None:
        end = graph.report.ended.get(target.endpoint, "")
        return Need(target, ended=end, coming="" if end else "nothing is known of the other side")
    if end := graph.end_of(process):
        return Need(target, process, ended=end)
    if any(
        theirs is not wait and _fit(wait, theirs) and _concerns(theirs, node.process)
        for theirs in (other.wait for other in graph.of(process))
        if theirs is not None
    ):
        return Need(target, process, coming="both sides are there, and data is under way")
    return action_of(graph, target, process, node)


def _of_queue(graph: WaitGraph, target: Target, wait: Wait) -> Need:
    queues = graph.queues(target)
    if wait.kind == "put" and queues and not any(queue.full for queue in queues):
        return Need(target, coming="the item is under way")
    if wait.kind != "put" and any(queue.items and queue.nbytes >= LARGE_BYTES for queue in queues):
        return Need(target, coming="a large item may be under way")
    return Need(target, anyone=True)


def _of_lock(graph: WaitGraph, target: Target, node: WaitNode) -> Need:
    if not target.endpoint:
        return Need(target, anyone=True)
    process = graph.processes.get(target.endpoint)
    if process is None or graph.end_of(process):
        return Need(target, process, coming="its daemon releases it")
    return action_of(graph, target, process, node)


def _of_weights(graph: WaitGraph, target: Target, node: WaitNode) -> Need:
    """Return the need for a version; it counts as coming if another group waits for these weights in another way."""
    process = graph.processes.get(target.endpoint)
    for other in graph.nodes:
        if other.wait is None or node.wait is None or other.process.group == node.process.group:
            continue
        of_same = any(each.kind is TargetKind.WEIGHTS and each.name == target.name for each in other.wait.targets)
        if of_same and other.wait.what != node.wait.what:
            return Need(target, process, coming="a version is under way")
    return Need(target, process, anyone=True)


def _of_activity(graph: WaitGraph, target: Target, node: WaitNode) -> Need:
    """Return the need for another activity of the same process, or for any of them if the name is unknown."""
    if target.name.startswith(("task ", "thread ")):
        named = tuple(other for other in graph.of(node.process) if other.name == target.name)
        return Need(target, node.process, named, coming="" if named else "it has ended")
    if target.name.startswith("channel "):  # a local channel, which belongs to this process
        return Need(target, node.process, anyone=True)
    if target.name or not _is_given_back(node):
        return Need(target, node.process, coming="it may come from outside")
    return Need(target, node.process, anyone=True)


def _is_given_back(node: WaitNode) -> bool:
    """True if only an activity in the report can end a wait for a lock, an event or a queue.

    This holds for coroutines that wait for locks and permits, which other activities hold. Events and queue items may
    also come from a loop callback that has read a socket or a signal. Threads wait for other threads, which the report
    also contains; only the wait of a driver's main thread may be ended by a signal.
    """
    activity, wait = node.activity, node.wait
    if activity is None or wait is None:
        return False
    # The process has already excluded signals.
    if activity.blocks:
        return True
    if activity.name.startswith("thread "):
        is_drivers = node.process.role == "driver" and activity.name == MAIN_THREAD
        return not (is_drivers and ".Event." in wait.what)
    functions = [frame.function.rpartition(".")[2] for frame in activity.stack[-1:]]
    return functions[0] in _GIVEN_BACK if functions else wait.what.endswith(("Lock", "Semaphore"))


def _fit(one: Wait, other: Wait) -> bool:
    """True if a send and a receive may belong to the same message; also true if several waits at once hide this."""
    kinds = {one.kind, other.kind}
    if kinds == {"send", "recv"}:
        return one.what.startswith("broadcast") == other.what.startswith("broadcast")
    return not kinds <= {"send", "recv"}


def _concerns(wait: Wait, process: ProcessReport) -> bool:
    return any(each.kind is TargetKind.MESSAGE and each.endpoint == process.endpoint for each in wait.targets)
