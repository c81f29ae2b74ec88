"""How a channel comes to be known, is found and ends: what is said to the daemons about it.

A *roster* is what the run knows of a channel: ``name``, ``number`` (numbers rise by one and are used once), ``nodes``
that hold its queues, ``maxsize``, ``max_bytes`` and ``run``.  A *promise* is what travels of a channel that is passed
on before it has a roster: ``run``, ``maker`` (the endpoint that passes it on) and ``promise`` (which one of its).
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import Any, Final

from rlinf_async.errors import ClosedError, ConfigError, DeadlineExceeded, NodeLost, RLinfAsyncError
from rlinf_async.seat.client import NodeClient

logger = logging.getLogger(__name__)

_ANSWERED_WITHIN: Final = 5.0
"""Seconds that node 0 has to say which channels there are, once there was none of the name that was wanted."""

Roster = dict[str, Any]
Promise = dict[str, Any]


async def create(
    client: NodeClient, name: str, *, maxsize: int, max_bytes: int, distributed: bool, node_rank: int
) -> Roster:
    """Makes the queues, then the name; the roster of another channel if the name was taken.

    Raises:
        ConfigError: there is no such node.
        NodeLost, ClosedError: a node, or this process's own seat, is gone.
    """
    welcome = await client.ready.async_wait()
    peers = {peer["node"] for peer in welcome["nodes"] if not peer.get("hidden")}
    if not distributed and node_rank not in peers:
        raise ConfigError(f"channel '{name}': there is no node {node_rank}, the run has nodes {sorted(peers)}")
    roster: Roster = {
        "name": name,
        "number": await client.ask("number_channel", node=0, what=f"a number for channel '{name}'"),
        "nodes": sorted(peers) if distributed else [node_rank],
        "maxsize": maxsize,
        "max_bytes": max_bytes,
        "run": welcome["run"],
    }
    facts = {"name": name, "number": roster["number"], "maxsize": maxsize, "max_bytes": max_bytes}
    asks = [client.ask("host_channel", facts, node=node) for node in roster["nodes"]]
    try:
        for ask in asks:
            await ask.async_wait()
        known: Roster = await client.ask("name_channel", {"name": name, "roster": roster}, node=0)
    except RLinfAsyncError:
        await close(client, roster)  # nobody will ever hear of what has been made
        raise
    if known["number"] != roster["number"]:
        logger.warning("there is a channel named '%s' already: connected to it", name)
        await close(client, roster)
    return known


async def find(client: NodeClient, name: str, timeout: float | None) -> Roster:
    """Waits until there is such a channel.

    Raises:
        DeadlineExceeded: there was none within ``timeout`` seconds; lists those that there are.
    """
    await client.ready.async_wait()
    lookup = client.ask("find_channel", {"name": name}, node=0, what=f"a channel named '{name}'")
    try:
        roster: Roster = await lookup.async_wait(timeout)
    except asyncio.CancelledError:
        client.ask("forget_find", {"name": name, "ask": lookup.number}, node=0)
        raise
    except DeadlineExceeded:
        forgotten = client.ask("forget_find", {"name": name, "ask": lookup.number}, node=0)
        try:
            names = await forgotten.async_wait(_ANSWERED_WITHIN)
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"there was no channel named '{name}' within {timeout:g} s, and for {_ANSWERED_WITHIN:g} s more node 0 "
                "has not said which there are: its daemon does not answer"
            ) from None
        if not lookup.done():
            raise DeadlineExceeded(
                f"there was no channel named '{name}' within {timeout:g} s; there are: {', '.join(names) or 'none'}"
            ) from None
        roster = await lookup  # what is there is found, also with a timeout of 0
    return roster


def promise(client: NodeClient) -> Promise:
    """What may travel in place of a channel that has no number yet; ``keep`` has to be called when it has.

    One thread at a time: promises are told of in the order of their numbers.

    Raises:
        RuntimeError: this process does not know its place in the run yet.
    """
    if not client.endpoint:
        raise RuntimeError("the cluster is still starting: `await cluster` before a channel is passed on")
    made = _made[client] = _made.get(client, 0) + 1
    client.ask("promise_channel", {"promise": made}, node=0)
    return {"run": client.welcome["run"], "maker": client.endpoint, "promise": made}


_made: Final[weakref.WeakKeyDictionary[NodeClient, int]] = weakref.WeakKeyDictionary()
"""How many promises each client has made."""


def keep(client: NodeClient, promise: Promise, roster: Roster | None) -> None:
    """It is this channel, or it will be none."""
    number = None if roster is None else roster["number"]
    client.ask("keep_promise", {"promise": promise["promise"], "number": number}, node=0)


async def redeem(client: NodeClient, promise: Promise, name: str) -> Roster | None:
    """The channel that was passed on before it had a number; None if it is closed, or never came to be."""
    found: Roster | None = await client.ask("redeem_promise", promise, node=0, what=f"channel '{name}', being made")
    return found


async def close(client: NodeClient, roster: Roster, *, discard: bool = False) -> None:
    """Closes the queues and frees the name; what is lost or gone is closed already."""
    number = {"number": roster["number"]}
    asks = [client.ask("close_channel", {**number, "discard": discard}, node=node) for node in roster["nodes"]]
    for ask in (*asks, client.ask("unname_channel", number, node=0)):
        try:
            await ask.async_wait()
        except (NodeLost, ClosedError):
            continue
