"""Joins started node daemons into one cluster: sends each its configuration, then the addresses of all others.

The same few messages serve the single daemon of an embedded cluster and the hundred daemons of a launched run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from rlinf_async._wire.lifeline import Lifeline
from rlinf_async._wire.node_config import NodeConfig
from rlinf_async.errors import LaunchError, RLinfAsyncError

_Result = TypeVar("_Result")

Progress = Callable[[int, str, Mapping[str, Any]], None]
"""Callback that receives an index, a state and data: ``"up"`` with ``address`` and ``facts``, ``"ready"``, or
``"failed"`` with ``error``."""


async def start_nodes(
    lifelines: Sequence[Lifeline],
    configs: Sequence[NodeConfig],
    *,
    timeout: float | None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Join started daemons into one cluster: send configurations, collect addresses, send all addresses to each.

    Return the list of peers sent to every daemon: ``node``, ``name``, ``address``, ``hidden``, ``labels``, ``facts``,
    ``log_dir``, the daemon's ``socket`` and ``pid``, valid only on its own machine, and an often empty ``note`` for the
    user.

    The caller must stop the lifelines, even on failure.

    Raises:
        LaunchError: lists every node that failed or was not ready within ``timeout`` seconds in total.
    """

    async def up(index: int) -> dict[str, Any]:
        await lifelines[index].send(configs[index].to_json(), timeout=None)
        message = await _expect(lifelines[index], "up")
        if progress is not None:
            progress(index, "up", message)
        return message

    async def ready(index: int) -> None:
        await lifelines[index].send({"op": "peers", "peers": peers}, timeout=None)
        message = await _expect(lifelines[index], "ready")
        if progress is not None:
            progress(index, "ready", message)

    names = [lifeline.name for lifeline in lifelines]
    hidden = {index for index, config in enumerate(configs) if config.hidden}
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    common: Any = {"deadline": deadline, "progress": progress, "said": lambda index: lifelines[index].stray_output()}
    ups, failures = await on_all_nodes(len(names), up, doing="starting its daemon", **common)
    if failures:
        raise launch_error(names, failures, hidden)
    known: list[dict[str, Any]] = [
        {"node": config.node, "name": config.name, "hidden": config.hidden, "labels": list(config.labels)}
        | {"address": up["address"], "facts": up["facts"], "log_dir": up.get("log_dir", "")}
        for config, up in zip(configs, (ups[index] for index in range(len(names))), strict=True)
    ]
    peers = sorted(known, key=lambda peer: peer["node"])
    _, failures = await on_all_nodes(len(names), ready, doing="connecting to the other nodes", **common)
    if failures:
        raise launch_error(names, failures, hidden)
    return [
        peer | {"socket": up["socket"], "pid": up["pid"], "note": up.get("note", "")}
        for peer, up in zip(known, (ups[index] for index in range(len(known))), strict=True)
    ]


async def on_all_nodes(
    count: int,
    work: Callable[[int], Awaitable[_Result]],
    *,
    deadline: float | None,
    doing: str,
    patience: float = 10.0,
    progress: Progress | None = None,
    said: Callable[[int], str] | None = None,
) -> tuple[dict[int, _Result], dict[int, str]]:
    """Run ``work(index)`` for all nodes concurrently. Return the results and the error texts, each as a dict by index.

    A failure is an ``RLinfAsyncError`` or a missed deadline. After the first failure the other nodes have ``patience``
    more seconds to succeed or fail, so that all failures are reported.

    Args:
        deadline: time on the loop's clock; None waits forever.
    """
    results: dict[int, _Result] = {}
    failures: dict[int, str] = {}
    loop = asyncio.get_running_loop()

    async def one(index: int) -> None:
        try:
            results[index] = await work(index)
        except RLinfAsyncError as error:
            fail(index, str(error))
            last = loop.time() + patience
            if (end := limit.when()) is None or end > last:
                limit.reschedule(last)

    def fail(index: int, text: str) -> None:
        failures[index] = text
        if progress is not None:
            progress(index, "failed", {"error": text})

    started = loop.time()
    try:
        async with asyncio.timeout_at(deadline) as limit, asyncio.TaskGroup() as group:
            for index in range(count):
                group.create_task(one(index))
    except TimeoutError:
        first = "when the others failed" if failures else f"after {loop.time() - started:.0f} s"
        for index in range(count):
            if index not in results and index not in failures:
                fail(index, f"was still {doing} {first}{said(index) if said else ''}")
    return results, failures


def launch_error(names: Sequence[str], failures: Mapping[int, str], hidden: Collection[int] = ()) -> LaunchError:
    """Return one error that lists every node that could not be started, with its cause.

    A hidden node counts only if it failed, because the user did not list it.
    """
    width = max(len(names[index]) for index in failures)
    count = sum(index in failures or index not in hidden for index in range(len(names)))
    lines = [f"{len(failures)} of {count} nodes could not be started:"]
    for index in sorted(failures):
        first, *rest = failures[index].splitlines() or [""]
        lines.append(f"  {names[index]:<{width}}  {first}")
        lines += [f"  {'':<{width}}  {line}" for line in rest]
    return LaunchError("\n".join(lines))


async def _expect(lifeline: Lifeline, event: str) -> dict[str, Any]:
    message = await lifeline.receive(None)
    if message.get("event") == event:
        return message
    if message.get("event") == "failed":
        raise LaunchError(str(message.get("error")))
    if message.get("event") == "node_lost":
        raise LaunchError(f"lost its connection to node {message.get('node')}: {message.get('reason')}")
    raise LaunchError(f"said {message.get('event')!r} where {event!r} was expected")
