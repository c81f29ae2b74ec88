"""Starts recording once the daemon has accepted a process; opens, collects and closes a run's trace.

In a traced run every process writes its operations into its span log (``_recorder/state/span_log.py``). The daemons
read the logs, and one daemon writes the file (``launcher/daemon/trace_service.py``), so that no process sends or waits
for anything.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from rlinf_async import settings
from rlinf_async._client.client import NodeClient
from rlinf_async._core import clock, operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async._recorder import recording
from rlinf_async.errors import DeadlineExceeded, NodeLost, RLinfAsyncError

logger = own_logger(__name__)


def attach(client: NodeClient, name: str) -> None:
    """Make this process record its latest events and, once its daemon reports that the run is traced, spans."""

    def greeted() -> None:
        welcome = client.welcome
        identity = {"process": name[:200], "run": welcome.get("run"), "node": client.node, "endpoint": client.endpoint}
        identity |= {"pid": os.getpid(), "host": socket.gethostname()}
        logs = welcome.get("log_dir", "")

        def on_traced(facts: dict[str, Any]) -> None:
            welcome["trace"] = facts
            recording.trace(client, logs, identity)

        recording.attach(client, logs, identity)
        client.events.on("traced", on_traced)
        if "trace" in welcome:
            on_traced(welcome["trace"])

    client.events.on("closed", lambda facts: recording.detach(client))
    client.ready._follow(greeted)


async def open_trace(client: NodeClient, path: str | None) -> None:
    """Trace the run, including this process, into an absolute ``path``; None for a file next to the logs.

    Raises:
        ConfigError: the file cannot be written, or the run is already traced into another file.
    """
    facts = await client.request(operations.OpenTrace(path), what="a file for the trace")
    start = operations.StartTrace(facts["node"], facts["path"])
    for request in [client.request(start, node=peer["node"]) for peer in client.welcome["nodes"]]:
        await request


async def close_trace(client: NodeClient) -> None:
    """Complete the file with all recorded spans of the run, and stop recording in this process."""
    if client.welcome.get("trace") is not None:
        recording.detach(client)
        with contextlib.suppress(RLinfAsyncError):  # the run has ended, so the file keeps the spans collected so far
            await collect(client)


async def collect(client: NodeClient) -> str | None:
    """Complete the file with the spans recorded so far on nodes that answer in time. Return its path."""
    facts: dict[str, Any] | None = client.welcome.get("trace")
    if facts is None:
        return None
    nodes = [peer["node"] for peer in client.welcome["nodes"]]
    requests = [client.request(operations.CollectTrace(), node=node, what="the spans of a node") for node in nodes]
    timeout = settings.TRACE_COLLECT_TIMEOUT_S()
    until = clock.monotonic() + timeout  # one deadline for all nodes
    for node, request in zip(nodes, requests, strict=True):
        try:
            await request.async_wait(max(0.0, until - clock.monotonic()))
        except NodeLost:
            pass
        except DeadlineExceeded:
            logger.warning("node %d has not sent its spans within %g s; the trace goes on without them", node, timeout)
    path: str = facts["path"]
    return path
