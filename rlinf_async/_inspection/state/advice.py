"""Advice on hopeless waits: the missing action, and the state of the process that should have taken it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Final

from rlinf_async._core.root_cause import fold_ranks
from rlinf_async._inspection.state.collectives import is_rendezvous
from rlinf_async._inspection.state.descriptions import join, names_of, state_of
from rlinf_async._inspection.state.entanglement import Core
from rlinf_async._inspection.state.liveness import Liveness
from rlinf_async._inspection.state.needs import Need
from rlinf_async._inspection.state.run_report import LOOP_BLOCKED, QueueReport, TargetKind
from rlinf_async._inspection.state.wait_graph import MAIN_THREAD, WaitNode

_MAX_ADVICE: Final = 8

_ONE_AT_A_TIME: Final = (
    "methods that are no coroutines run one at a time: make one of the circle `async def`, or do not wait in it"
)


def advice_on(liveness: Liveness, core: Core) -> list[str]:
    states: dict[int, tuple[str, str]] = {}
    # Maps everything in a line except the ranks to the needs that share the line, keyed by endpoint.
    folded: dict[Hashable, dict[int, tuple[WaitNode, Need]]] = {}
    for node, need in core.needs:
        process = need.process
        if process is not None and process.endpoint not in states:
            states[process.endpoint] = state_of(liveness, process)
        state = need.ended if process is None else states[process.endpoint][0]
        group = "" if process is None else process.group or process.name
        alike = folded.setdefault((need.target.kind, need.target.name, group, state), {})
        alike[0 if process is None else process.endpoint] = (node, need)
    lines = dict.fromkeys(_line(liveness, list(alike.values()), states) for alike in folded.values())
    kinds = {need.target.kind for _, need in core.needs}
    if core.is_circle and TargetKind.CALL in kinds and TargetKind.RESTART not in kinds:
        lines[_ONE_AT_A_TIME] = None
    lines |= dict.fromkeys((*_exits(liveness), *on_blocked_loops(core.nodes)))
    return list(lines)[:_MAX_ADVICE]


def _line(liveness: Liveness, alike: list[tuple[WaitNode, Need]], states: dict[int, tuple[str, str]]) -> str:
    node, first = alike[0]
    target = first.target
    who = names_of(need.process for _, need in alike if need.process is not None) or "the other side"
    state = f"has {first.ended}" if first.process is None else states[first.process.endpoint][len(alike) > 1]
    match target.kind:
        case TargetKind.CALL:
            return f"{who} should have answered, but {state}"
        case TargetKind.MESSAGE:
            return f"{who} should have sent or received, but {state}"
        case TargetKind.COLLECTIVE if is_rendezvous(target.name) and first.arrived:
            return (
                f"all ranks have come to {target.name.partition('#')[0]}() and do not meet: "
                "do all give it the same store, prefix, world size and number of earlier process groups?"
            )
        case TargetKind.COLLECTIVE:
            return f"{who} should have come to {target.name.partition('#')[0]}, but {state}"
        case TargetKind.QUEUE:
            return _channel(liveness, target.name, liveness.graph.queues(target))
        case TargetKind.NAME:
            return f"somebody should have made a group or channel named '{target.name}'"
        case TargetKind.RESTART:
            return f"group '{target.name}' should have gone on after a restart, but on_restart() has not ended there"
        case TargetKind.LOCK:
            if first.process is None:
                return f"somebody should have released {target.name}"
            return f"{who} should have released {target.name}, but {state}"
        case TargetKind.WEIGHTS:
            return _version(liveness, target.name)
        case TargetKind.LOCAL if target.name:
            return f"{target.name} of {who} should have ended"
        case _:
            what = "that" if node.wait is None else node.wait.what
            return f"another task or thread of {who} should have ended the wait for {what}, and none of them runs"


def _version(liveness: Liveness, model: str) -> str:
    graph = liveness.graph
    idle = [each for each in graph.processes.values() if each.role == "worker" and not graph.of(each)]
    found = names_of(process for process in idle if not graph.end_of(process))
    rest = f"; {found} could, and {'is' if len(idle) == 1 else 'are'} idle" if found else ""
    return f"somebody should have published a version of '{model}'{rest}"


def _exits(liveness: Liveness) -> Iterator[str]:
    for node in liveness.hopeless:
        if node.process.role == "driver" and node.name == MAIN_THREAD and node.activity and not node.activity.line:
            threads = join([name for name in node.activity.awaits if name.startswith("thread ")][:_MAX_ADVICE])
            if threads:
                yield f"the script has come to its end, and its exit waits for {threads}: let it end, or be a daemon"


def on_blocked_loops(nodes: Iterable[WaitNode]) -> Iterator[str]:
    """Yield advice for drivers whose event loop is blocked."""
    for node in nodes:
        if node.activity is not None and node.activity.blocks and node.process.trouble == LOOP_BLOCKED:
            where = f" at {node.activity.line}" if node.activity.line else ""
            yield (
                f"the event loop of {names_of([node.process])} stands still{where}: "
                "await there, or leave that to a thread (await asyncio.to_thread(...))"
            )


def _channel(liveness: Liveness, name: str, queues: list[QueueReport]) -> str:
    items = sum(queue.items for queue in queues)
    noun = "experience" if any(queue.ledger for queue in queues) else "channel"
    if any(queue.full for queue in queues):
        users = _known(liveness, [each for queue in queues for each in queue.consumers]) or "nobody"
        return f"somebody should have got from {noun} '{name}', which is full with {items} items; so far {users} did"
    users = _known(liveness, [each for queue in queues for each in queue.producers])
    gone = {group: ranks for queue in queues for group, ranks in queue.gone.items()}
    ended = join([f"{group}:{fold_ranks(ranks)}" for group, ranks in list(gone.items())[:_MAX_ADVICE]])
    so_far = f"so far {users} did" if users else f"{ended} did, and have ended" if ended else "nobody ever did"
    other = f", whose {items} items have other keys" if items else ""
    return f"somebody should have put into {noun} '{name}'{other}; {so_far}"


def _known(liveness: Liveness, endpoints: Iterable[int]) -> str:
    graph = liveness.graph
    found = (graph.processes[each] for each in dict.fromkeys(endpoints) if each in graph.processes)
    return names_of(process for process in found if not graph.end_of(process))
