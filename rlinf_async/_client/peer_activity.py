"""Diagnostics of long waits: asks daemons about the activity of awaited workers, requests, names and queues.

The daemons are asked only when a wait is described. If an answer does not arrive within ``settings.WAIT_ANSWER_S``, the
description says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rlinf_async import settings
from rlinf_async._core import frames, operations
from rlinf_async._core.operations import Answer, Operation
from rlinf_async._core.root_cause import fold_ranks
from rlinf_async._inspection.state.run_report import ProcessReport, from_data
from rlinf_async._waits import slow_waits
from rlinf_async.work import Work

Member = tuple[str, int]

_Like = tuple[str, str, tuple[str, ...]]
"""Group, state and methods; ranks with equal values share one line."""


class RequestSender(Protocol):
    """The part of ``NodeClient`` that sends requests to daemons."""

    user_loop: asyncio.AbstractEventLoop | None

    def request(self, operation: Operation[Answer], *, node: int) -> Work[Answer]: ...

    def later(self, seconds: float, callback: Callable[[], None]) -> None: ...


def workers(client: RequestSender, members: Mapping[int, Member]) -> Work[str]:
    """Describe the open calls and any unusual process states of workers, given as endpoints with group and rank."""
    by_node: dict[int, list[int]] = {}
    for endpoint in members:
        by_node.setdefault(frames.node_of(endpoint), []).append(frames.number_of(endpoint))
    requests = {
        node: client.request(operations.Inspect(numbers, ["oldest"]), node=node) for node, numbers in by_node.items()
    }

    def describe() -> str:
        reports_of: dict[Member, ProcessReport | None] = {}
        missing = []
        for node, request in requests.items():
            answer, excuse = _answer_of(request, node)
            reports = {each["endpoint"]: from_data(ProcessReport, each) for each in (answer or {}).get("processes", ())}
            reports_of |= {
                members[each]: reports.get(each) for each in members if answer and frames.node_of(each) == node
            }
            missing += [excuse] if excuse else []
        return "; ".join([*_fold(reports_of), *missing])

    return _when_all(list(requests.values()), describe, client)


def request(client: RequestSender, operation: Operation[Any], number: int, node: int) -> Work[str]:
    """Describe what a daemon still needs in order to answer one of this process's open requests."""
    return _one(client, operations.RequestProgress(type(operation).__name__, vars(operation), number), node)


def name(client: RequestSender, group: str) -> Work[str]:
    return request(client, operations.Find("group", group, None, 0), -1, 0)


def queue(client: RequestSender, node: int, number: int, key: bytes) -> Work[str]:
    return _one(client, operations.QueueState(number, key), node)


def through(inner: Sequence[slow_waits.Waitable]) -> Work[str]:
    """Describe the operations that a wait depends on, each with its own description."""
    descriptions = [(work, work._peer_activity()) for work in inner]

    def describe() -> str:
        parts = []
        for work, description in descriptions:
            text = description._result() if description is not None and description.done() else ""
            parts.append(f"it needs {work._describe()}{f': {text}' if text else ''}")
        return "; ".join(parts)

    return _when_all([description for _, description in descriptions if description is not None], describe)


def _one(client: RequestSender, operation: Operation[str], node: int) -> Work[str]:
    request = client.request(operation, node=node)

    def describe() -> str:
        answer, excuse = _answer_of(request, node)
        return excuse or str(answer)

    return _when_all([request], describe, client)


def _when_all(
    asked: Sequence[slow_waits.PeerActivity], describe: Callable[[], str], client: RequestSender | None = None
) -> Work[str]:
    """Return a work that is settled with ``describe()`` once all have answered, or when the client's timer expires."""
    description: Work[str] = Work()

    def finish() -> None:
        if not description.done():
            try:
                description._settle(describe())
            except Exception as error:
                description._settle(error=error)

    def one_has_answered() -> None:
        if all(work.done() for work in asked):
            finish()

    for work in asked:
        work._follow(one_has_answered)
    if not asked:
        finish()
    if client is not None and not description.done():
        client.later(settings.WAIT_ANSWER_S(), finish)
    return description


def _answer_of(request: slow_waits.PeerActivity, node: int) -> tuple[Any, str]:
    """Return the answer of a node's daemon, or the reason why there is none."""
    if not request.done():
        return None, f"the daemon of node {node} has not answered within {settings.WAIT_ANSWER_S():g} s"
    try:
        return request._result(), ""
    except Exception as error:
        return None, f"node {node}: {error}"


def _fold(facts: Mapping[Member, ProcessReport | None]) -> list[str]:
    ranks: dict[_Like, list[int]] = {}
    ages: dict[_Like, list[list[float]]] = {}
    more: dict[_Like, int] = {}
    for (group, rank), report in facts.items():
        calls = [] if report is None else report.calls
        state = "ended" if report is None else report.trouble.removeprefix("is ")
        like = (group, state, tuple(call.method for call in calls))
        ranks.setdefault(like, []).append(rank)
        ages.setdefault(like, []).append([call.age for call in calls])
        more[like] = max(more.get(like, 0), 0 if report is None else report.owed - len(calls))
    return [_line(like, ranks[like], ages[like], more[like]) for like in ranks]


def _line(like: _Like, ranks: Sequence[int], ages: Sequence[Sequence[float]], more: int) -> str:
    group, state, methods = like
    calls = [f"{method} ({_span(by_rank)})" for method, *by_rank in zip(methods, *ages, strict=True)]
    doing = f"in {', '.join(calls)}" if calls else "" if state else "idle"
    if more > 0:
        doing += f" and {more} more"
    subject = f"ranks {fold_ranks(ranks)} of '{group}' are" if len(ranks) > 1 else f"rank {ranks[0]} of '{group}' is"
    return f"{subject} {', '.join(filter(None, (state, doing)))}"


def _span(ages: Sequence[float]) -> str:
    least, most = f"{min(ages):.0f}", f"{max(ages):.0f}"
    return f"{least} s" if least == most else f"{least}-{most} s"
