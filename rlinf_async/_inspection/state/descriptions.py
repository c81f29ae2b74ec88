"""Descriptions of activities, one for all similar ranks: ``actor:0-3 wait for 42 s: recv(), at t.py:12 in f()``."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from rlinf_async._core.root_cause import fold_ranks
from rlinf_async._inspection.state.collective_needs import collective_name
from rlinf_async._inspection.state.liveness import Liveness
from rlinf_async._inspection.state.needs import is_in_collective
from rlinf_async._inspection.state.run_report import Activity, ActivityState, ProcessReport, Wait
from rlinf_async._inspection.state.wait_graph import MAIN_THREAD, WaitGraph, WaitNode, is_stopped

MAX_LINES: Final = 16
_MAX_NODES: Final = 3
_MAX_NAMES: Final = 8


def names_of(processes: Iterable[ProcessReport]) -> str:
    """Return ``actor:0-2,5 and the driver``."""
    groups: dict[str, list[int]] = {}
    for process in processes:
        groups.setdefault(_kin(process), []).extend([process.rank] if process.role == "worker" else [])
    names = [f"{kin}:{fold_ranks(ranks)}" if ranks else kin for kin, ranks in groups.items()]
    if len(names) > _MAX_NAMES:
        names = [*names[:_MAX_NAMES], f"{len(names) - _MAX_NAMES} more"]
    return join(names)


def join(words: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def lines_of(graph: WaitGraph, nodes: Iterable[WaitNode]) -> list[str]:
    alike: dict[Hashable, list[WaitNode]] = {}
    for node in nodes:
        alike.setdefault((_kin(node.process), *_doing(node), _line(node)), []).append(node)
    lines = [_text(graph, same, with_place=True) for same in alike.values()]
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"and {len(lines) - MAX_LINES} other waits"]
    return lines


def sentence(graph: WaitGraph, nodes: Sequence[WaitNode]) -> str:
    """Return the first line of the description, without nodes and process ids."""
    first = nodes[0]
    what = (_kin(first.process), *_doing(first), _line(first))
    return _text(graph, [node for node in nodes if (_kin(node.process), *_doing(node), _line(node)) == what])


def state_of(liveness: Liveness, process: ProcessReport) -> tuple[str, str]:
    graph = liveness.graph
    if end := graph.end_of(process):
        text = end if end.startswith("ended") else f"ended: {end}"
        return f"has {text}", f"have {text}"
    doing = [node for node in graph.of(process) if node.activity is not None]
    if is_stopped(process) or (not process.answered and not doing):
        return f"is {process.trouble}", f"are {process.trouble}"
    if not doing:
        return "is idle", "are idle"
    node = next((each for each in doing if each.waits), doing[0])
    what = f": {_doing(node)[1]}" if _doing(node)[1] else ""
    if not node.waits:
        return f"{_verb(node, 1)}{_place(node)}", f"{_verb(node, 2)}{_place(node)}"
    return f"waits itself{what}{_place(node)}", f"wait themselves{what}{_place(node)}"


def seconds(ages: Iterable[float | None]) -> str:
    """Return ``42 s`` or ``40-42 s``; empty if no age is known."""
    known = sorted(round(age) for age in ages if age is not None)
    if not known:
        return ""
    return f"{known[0]} s" if known[0] == known[-1] else f"{known[0]}-{known[-1]} s"


def age_of(graph: WaitGraph, node: WaitNode) -> float | None:
    """Return the age of a wait or, for running code, of the call that it serves."""
    call = None if node.waits else graph.call_of(node)
    return node.age if call is None else call.age


def _text(graph: WaitGraph, nodes: Sequence[WaitNode], *, with_place: bool = False) -> str:
    node = nodes[0]
    processes = list({each.process.endpoint: each.process for each in nodes}.values())
    who = names_of(processes)
    if with_place:
        places = list(dict.fromkeys(process.node_name for process in processes))
        where = ", ".join(places) if len(places) <= _MAX_NODES else f"{len(places)} nodes"
        pid = f", pid {processes[0].pid}" if len(processes) == 1 else ""
        name = f", {node.name}" if len(nodes) == 1 and node.name not in ("", MAIN_THREAD) else ""
        who = f"{who} ({where}{pid}{name})"
    several = "" if len(nodes) == len(processes) else f", {len(nodes)} times"
    lasting = seconds(age_of(graph, each) for each in nodes)
    of_calls = seconds(call.age for each in nodes if not lasting and (call := graph.call_of(each)) is not None)
    verb = _verb(node, len(processes))
    what = _doing(node)[1]
    left = seconds(each.wait.left if each.waits and each.wait else None for each in nodes)
    parts = [who, " ", verb, f" for {lasting}" if lasting else "", several, f": {what}" if what else ""]
    parts += [f", for {left} more at most" if left else "", _place(node, of_calls)]
    return "".join(parts)


def _verb(node: WaitNode, count: int) -> str:
    several, activity = count > 1, node.activity
    trouble = node.process.trouble.replace("does not", "do not") if several else node.process.trouble
    if is_stopped(node.process):
        return f"{'are' if several else 'is'} {trouble}"
    if activity is None:
        return trouble or ("are about to go on" if several else "is about to go on")
    # Show a wait for something outside the run as a wait; only the verdict treats it as running.
    state = ActivityState.WAITING if activity.wait and activity.state is ActivityState.RUNNING else activity.state
    verb = {
        ActivityState.WAITING: ("waits", "wait"),
        ActivityState.IDLE: ("is idle", "are idle"),
        ActivityState.RUNNING: ("runs", "run"),
        ActivityState.SLEEPING: ("sleeps", "sleep"),
    }[state][several]
    method = f" {activity.method}()" if activity.method and state is ActivityState.RUNNING else ""
    return f"{trouble} and {verb}{method}" if trouble else f"{verb}{method}"


def _doing(node: WaitNode) -> tuple[str, str]:
    activity = node.activity
    if activity is None:
        owed = "".join(f"a call of {call.method}() is open" for call in node.process.calls[:1])
        return node.process.trouble, owed
    state = f"{activity.state} {activity.method} {node.process.trouble}"
    if activity.wait is not None:
        return state, what_of(activity.wait)
    return state, _tasks(activity) if node.waits else ""


def what_of(wait: Wait) -> str:
    """Return a wait's description; for a collective, omit the other ranks, because they differ from rank to rank."""
    if len(wait.targets) < 2 or not is_in_collective(wait):
        return wait.what
    kind, _, group = collective_name(wait).partition("#")
    return f"{kind} of process group {group}" if group else kind


def _tasks(activity: Activity) -> str:
    names = activity.awaits[:_MAX_NAMES]
    more = len(activity.awaits) - len(names)
    return "the end of " + join([*names, *([f"{more} more"] if more else [])]) if names else "something"


def _place(node: WaitNode, of_call: str = "") -> str:
    line = _line(node)
    method = "" if node.activity is None or not (node.waits or node.wait) else node.activity.method
    served = f", in a call of {method}()" if method and (of_call or f"{method}()" not in (line or "")) else ""
    return (f", at {line}" if line else "") + served + (f" for {of_call}" if served and of_call else "")


def _line(node: WaitNode) -> str | None:
    return None if node.activity is None else node.activity.line


def _kin(process: ProcessReport) -> str:
    if process.role == "worker":
        return process.group
    return "the driver" if process.role == "driver" else f"{process.name} ({process.role}, pid {process.pid})"
