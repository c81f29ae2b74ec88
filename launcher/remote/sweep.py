"""Local side of ``--sweep RUN``: runs ``sweeper.py`` on all hosts in parallel, and collects the results by rank."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._wire.lifeline import Lifeline, fresh_marker
from rlinf_async._wire.mesh import on_all_nodes
from rlinf_async.errors import LaunchError

from .bootstrap import shipment
from .plan import PlannedNode

_SWEEP_TIMEOUT_S: Final = 60.0


async def sweep(
    nodes: Sequence[PlannedNode], run: str, *, even_alive: bool = False
) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
    """Check all hosts in parallel, then sweep the hosts that answered; ``even_alive`` sweeps a live run, too.

    Returns two maps by rank: results (``ended`` and ``left``: processes, ``removed``: directories), and error texts.
    Raises LaunchError, before any kill, if a daemon of the run answers on some host.
    """
    lifelines: dict[int, Lifeline] = {}
    slots = asyncio.Semaphore(int(settings.SSH_AT_ONCE()))
    by = f"a sweep (rlinf-launch --sweep, pid {os.getpid()} on {os.uname().nodename})"

    async def look(rank: int) -> dict[str, Any]:
        node, marker = nodes[rank], fresh_marker()
        prelude = shipment("sweeper", {"run": run, "marker": marker, "by": by})
        async with slots:
            lifelines[rank] = await Lifeline.start(
                node.connector.argv, name=node.name, marker=marker, prelude=prelude, explain=node.connector.explain
            )
            return await lifelines[rank].receive(None)

    async def end(rank: int) -> dict[str, Any]:
        if rank in failures:
            raise LaunchError(failures[rank])
        await lifelines[rank].send({"op": "sweep"})
        answer = await lifelines[rank].receive(None)
        if answer.get("left"):
            raise LaunchError(f"these processes do not end: {answer['left']}")
        return answer

    deadline = asyncio.get_running_loop().time() + _SWEEP_TIMEOUT_S
    try:
        looks, failures = await on_all_nodes(len(nodes), look, deadline=deadline, doing="being looked at")
        alive = sorted({nodes[rank].name for rank, answer in looks.items() if answer["alive"]})
        if alive and not even_alive:
            raise LaunchError(
                f"run {run} is alive: a daemon of it answers on {', '.join(alive)}; nothing was swept\n"
                f"  fix: `rlinf-ctl down {run}` ends it in order; --force sweeps it anyway"
            )
        return await on_all_nodes(len(nodes), end, deadline=deadline, doing="being swept")
    finally:
        await asyncio.gather(*(lifeline.close() for lifeline in lifelines.values()))
