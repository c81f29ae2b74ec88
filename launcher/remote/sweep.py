"""Local side of ``--sweep RUN``: runs ``sweeper.py`` on all hosts at once, and collects the results by rank."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from rlinf_async._wire.lifeline import Lifeline, fresh_marker
from rlinf_async._wire.mesh import on_all_nodes
from rlinf_async.errors import LaunchError

from .bootstrap import shipment
from .plan import Node

_SWEEP_TIMEOUT_S: Final = 60.0


async def sweep(nodes: Sequence[Node], run: str) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
    """Sweeps all hosts at once.

    Returns, by rank, what was found (``ended`` and ``left``: processes, ``removed``: directories), and the texts of
    failures.
    """

    async def one(rank: int) -> dict[str, Any]:
        node, marker = nodes[rank], fresh_marker()
        prelude = shipment("sweeper", {"run": run, "marker": marker})
        lifeline = await Lifeline.start(
            node.connector.argv, name=node.name, marker=marker, prelude=prelude, explain=node.connector.explain
        )
        try:
            answer = await lifeline.receive(None)
        finally:
            await lifeline.close()
        if answer.get("left"):
            raise LaunchError(f"these processes do not end: {answer['left']}")
        return answer

    deadline = asyncio.get_running_loop().time() + _SWEEP_TIMEOUT_S
    return await on_all_nodes(len(nodes), one, deadline=deadline, doing="being swept")
