"""Requests to all nodes of a run about its processes: ``report``, and ``why``, the verdict on a stuck run.

Processes of the run use these requests; an operator outside the run uses ``launcher/control``.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any, Final, Protocol

from rlinf_async import settings
from rlinf_async._core import operations
from rlinf_async._core.operations import Answer, Operation
from rlinf_async._core.own_logger import own_logger
from rlinf_async._inspection.state.run_report import Activity, RunReport, merged
from rlinf_async._inspection.state.verdict import Verdict, VerdictKind, judge
from rlinf_async.errors import RLinfAsyncError
from rlinf_async.work import Work

logger = own_logger(__name__)

PARTS: Final = ("activities", "queues")

# Seconds, in addition to the processes' answer time, that a busy daemon may need to read stacks.
_GRACE_S: Final = 3.0

VERDICT: Final = "the verdict on this run"  # description of the result of ``why`` in messages about waits

# Seconds between the two reports of a verdict; waits that are the same in both have made no progress.
ASK_AGAIN_S: Final = 0.5


class InspectionClient(Protocol):
    """The part of ``NodeClient`` that sends requests to daemons."""

    welcome: dict[str, Any]
    endpoint: int

    def request(self, operation: Operation[Answer], *, node: int) -> Work[Answer]: ...


async def report(client: InspectionClient, parts: Sequence[str] = PARTS) -> RunReport:
    """Return the current report of all nodes; nodes that do not answer are ``missing``."""
    nodes = {int(each["node"]): str(each["name"]) for each in client.welcome["nodes"]}
    requests = {node: client.request(operations.Inspect([], list(parts)), node=node) for node in nodes}
    answers: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for node, request in requests.items():
        try:
            answers.append(await request.async_wait(settings.INSPECTION_TIMEOUT_S() + _GRACE_S))
        except RLinfAsyncError as error:
            missing[nodes[node]] = str(error)
    return merged(str(client.welcome["run"]), answers, missing)


async def why(client: InspectionClient) -> Verdict:
    """Return the verdict on the run from two reports half a second apart, ignoring waits for the verdict itself."""
    before = await report(client)
    await _after(ASK_AGAIN_S)
    return judge(_without_askers(await report(client)), _without_askers(before), client.endpoint)


def _without_askers(report: RunReport) -> RunReport:
    processes = [
        dataclasses.replace(each, activities=[one for one in each.activities if not _asks(one)])
        for each in report.processes
    ]
    return dataclasses.replace(report, processes=processes)


def _asks(activity: Activity) -> bool:
    return activity.wait is not None and activity.wait.what in (VERDICT, operations.Inspect.__name__)


async def log_verdict(client: InspectionClient) -> None:
    """Log the verdict on the run, unless it says only that others are working, which the wait's own warning says."""
    try:
        verdict = await why(client)
    except RLinfAsyncError as error:  # the cluster is probably closing
        logger.info("there is no verdict on the run: %s", error)
        return
    if verdict.kind not in (VerdictKind.BUSY, VerdictKind.IDLE):
        logger.warning("the run %s, as `rlinf-ctl stuck` says: %s", client.welcome["run"], verdict)


async def _after(seconds: float) -> None:
    passed = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(seconds, passed.set)
    try:
        await passed.wait()
    finally:
        timer.cancel()
