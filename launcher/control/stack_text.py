"""``rlinf-ctl stack``: prints processes' threads and tasks as indented text; ``>`` marks lines of user code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rlinf_async._inspection.state.run_report import Activity, ActivityState, ProcessReport, to_data

from .attachment import Attachment
from .run_view import RunView, look, span_of
from .text_output import TextOutput, age

_MAX_INDENTS: Final = 41  # of a task that twenty others await, each by the next


async def show_stacks(attachment: Attachment, output: TextOutput, words: str | None) -> None:
    """Print the stacks of the ranks of ``GROUP[:RANKS]``, or of all processes.  Raises NoSuchRun."""
    chosen = None if words is None else (await look(attachment)).choose(words)
    view = await look(attachment, parts=["activities"], chosen=chosen)
    if output.as_json:
        output.json(to_data(view.report))
        return
    for processes in alike(view.report.processes):
        output.line("\n".join(stack_lines(processes)))
        output.line()
    show_missing(view, output)


def show_missing(view: RunView, output: TextOutput) -> None:
    for name, reason in view.report.missing.items():
        output.note(f"nothing is known of node {name}: {reason}")


def alike(processes: Sequence[ProcessReport]) -> list[list[ProcessReport]]:
    """Return the processes by group and rank, drivers first, grouping processes of equal shape."""
    found: dict[Any, list[ProcessReport]] = {}
    for process in sorted(processes, key=lambda each: (each.role != "driver", each.group, each.rank)):
        found.setdefault(_shape(process), []).append(process)
    return list(found.values())


def _shape(process: ProcessReport) -> Any:
    """Return a key that is equal for processes whose descriptions differ only in rank, place and ages."""
    activities = [
        (each.name, each.state, each.method, each.wait and (each.wait.kind, each.wait.what), *each.awaits, *each.stack)
        for each in process.activities
    ]
    calls = [call.method for call in process.calls]
    owner = process.group if process.role == "worker" else process.endpoint
    return process.role, owner, process.trouble, process.answered, *calls, *activities


def stack_lines(processes: Sequence[ProcessReport]) -> Iterator[str]:
    """Yield the text for processes of one shape: the first one's calls, threads, and tasks below their awaiters."""
    process = processes[0]
    where = f"pid {process.pid} on {process.node_name}"
    trouble = f"  {process.trouble}" if process.trouble else ""
    if len(processes) == 1:
        yield f"{process.name}  ({where}){trouble}"
    else:
        yield f"{process.group}:{span_of(processes)}  ({len(processes)} alike; of the first, {where}){trouble}"
    for call in process.calls:
        yield f"  has been asked for {call.method}() for {age(call.age)}"
    if process.activities and not process.answered:
        yield "  as its stacks show it from outside; of its tasks nothing is known"
    if not process.activities and not process.trouble:
        yield "  nothing of the user's runs or waits"
    by_name = {each.name: each for each in process.activities}
    awaited = {name for each in process.activities for name in each.awaits}
    shown: set[str] = set()
    roots = [each for each in process.activities if each.name not in awaited] or process.activities
    for activity in (*roots, *process.activities):  # the second part covers cycles, which no root reaches
        yield from _lines_of(activity, by_name, shown)


def _lines_of(root: Activity, by_name: dict[str, Activity], shown: set[str]) -> Iterator[str]:
    waiting = [(root, 1)]
    while waiting:
        activity, depth = waiting.pop()
        if activity.name in shown:
            continue
        shown.add(activity.name)
        indent = "  " * min(depth, _MAX_INDENTS)
        yield indent + _headline(activity)
        yield from (f"{indent}  {'>' if frame.users else ' '} {frame}" for frame in activity.stack)
        if not activity.stack and activity.line:
            yield f"{indent}    {activity.line}"
        waiting += [(by_name[name], depth + 2) for name in reversed(activity.awaits) if name in by_name]


def _headline(activity: Activity) -> str:
    serves = f", serves {activity.method}()" if activity.method else ""
    wait = activity.wait
    if wait is not None:
        left = "" if wait.left is None else f", {age(wait.left)} to its deadline"
        lasting = wait.age or activity.age  # the first report does not know the age of an unrecorded wait
        waits = f"waits for {age(lasting)}" if lasting else "waits"
        return f"{activity.name}: {waits}: {wait.what}{left}{serves}"
    since = "" if activity.age is None else f" for {age(activity.age)}"
    if activity.state is ActivityState.WAITING and activity.awaits:
        return f"{activity.name}: awaits {_named(activity.awaits)}{since}{serves}"
    return f"{activity.name}: {activity.state}{since}{serves}"


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
