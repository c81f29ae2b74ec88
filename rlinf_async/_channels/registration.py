"""Creates, finds, promises and closes channels by requests to daemons: queues on their nodes, names on node 0.

A *roster* describes a channel: ``name``, ``number`` (increasing by one, never reused), ``nodes`` that hold its queues,
``maxsize``, ``max_bytes`` and ``run``. A *promise* stands for a channel that is passed on before it has a roster:
``run``, ``maker`` (the endpoint that passes it on) and a unique ``name``.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from rlinf_async._channels.state.queue_counts import QueueCounts
from rlinf_async._client.client import NodeClient
from rlinf_async._client.name_lookup import find_name
from rlinf_async._core import operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async.errors import ClosedError, ConfigError, NodeLost

logger = own_logger(__name__)


Roster = dict[str, Any]
Promise = dict[str, Any]


async def create(
    client: NodeClient,
    name: str,
    *,
    maxsize: int,
    max_bytes: int,
    distributed: bool,
    node_rank: int,
    experience: dict[str, Any] | None = None,
) -> Roster:
    """Create the queues, then publish the name. Return the existing channel's roster if the name was taken.

    A distributed channel has a queue on each node that is not lost.

    Args:
        experience: the options of an experience; None for a channel.

    Raises:
        ConfigError: there is no such node, or the name belongs to an experience but a channel was requested, or vice
            versa.
        NodeLost, ClosedError: a node or this process's own connection is lost.
    """
    welcome = await client.ready.async_wait()
    whose = f"{'channel' if experience is None else 'experience'} '{name}'"
    peers = {peer["node"] for peer in welcome["nodes"] if not peer.get("hidden")}
    if not distributed and node_rank not in peers:
        raise ConfigError(f"{whose}: there is no node {node_rank}, the run has nodes {sorted(peers)}")
    roster: Roster = {
        "name": name,
        "number": await client.request(operations.Reserve("channel", name), node=0, what=f"a number for {whose}"),
        "nodes": sorted(peers - set(client.lost_nodes)) if distributed else [node_rank],
        "maxsize": maxsize,
        "max_bytes": max_bytes,
        "run": welcome["run"],
    }
    host: operations.Operation[None] = operations.HostChannel(roster["number"], name, maxsize, max_bytes)
    if experience is not None:
        roster["experience"] = experience
        host = operations.HostExperience(roster["number"], name, experience)
    requests = [client.request(host, node=node) for node in roster["nodes"]]
    try:
        for request in requests:
            await request.async_wait()
        known = await client.request(operations.Publish("channel", name, roster["number"], roster), node=0)
    except Exception:
        await close(client, roster)  # only this process knows the queues' number and can free them
        raise
    if known is None:
        return roster
    await close(client, roster)
    _check_kind(known, "experience" in roster)
    logger.warning("there is %s named '%s' already: connected to it", _kind(known), name)
    taken: Roster = known
    return taken


async def find(client: NodeClient, name: str, timeout: float | None, *, is_experience: bool = False) -> Roster:
    """Return a channel's roster, like ``find_name``; raise ConfigError if the name belongs to the other kind."""
    roster: Roster = await find_name(client, "channel", name, timeout, "experience" if is_experience else "channel")
    _check_kind(roster, is_experience)
    return roster


def _kind(roster: Roster) -> str:
    return "an experience" if "experience" in roster else "a channel"


def _check_kind(roster: Roster, is_experience: bool) -> None:
    if ("experience" in roster) != is_experience:
        how = "Channel.connect()" if is_experience else "Experience.connect()"
        raise ConfigError(f"'{roster['name']}' is {_kind(roster)}: use {how}, or another name")


def promise(client: NodeClient) -> Promise:
    """Return a promise, to be sent in place of a channel that has no number yet; call ``keep`` once it has one.

    Only one thread at a time may call this.

    Raises:
        RuntimeError: this process has no endpoint yet.
    """
    if not client.endpoint:
        raise RuntimeError("the cluster is still starting: `await cluster` before a channel is passed on")
    made = _made[client] = _made.get(client, 0) + 1
    return {"run": client.welcome["run"], "maker": client.endpoint, "name": f"{client.endpoint}.{made}"}


_made: Final[weakref.WeakKeyDictionary[NodeClient, int]] = weakref.WeakKeyDictionary()


def keep(client: NodeClient, promise: Promise, roster: Roster | None, why: str) -> None:
    """Resolve a promise with a roster, or with the reason why there is no channel (empty if it is closed)."""
    number = 0 if roster is None else roster["number"]
    client.request(operations.Publish("promise", promise["name"], number, why), node=0)


async def redeem(client: NodeClient, promise: Promise, name: str, noun: str = "channel") -> Roster | None:
    """Return a promise's channel; None if it is closed or its maker died. Raise ClosedError if creating it failed."""
    operation = operations.Find("promise", promise["name"], None, 0)
    who = f"{noun} '{name}'"
    found = await client.request(operation, node=0, what=f"{who}, being made")
    if isinstance(found, str):
        # Raise: if the failure were reported as a closed channel, a loop over the items would silently end.
        raise ClosedError(f"{who} could not be made: {found.removeprefix(f'{who}: ')}")
    roster: Roster | None = found
    return roster


async def count(client: NodeClient, roster: Roster) -> QueueCounts:
    """Return the sum of all queues' counts; raise ClosedError if the channel has ended, NodeLost if a node is lost."""
    count_items = operations.CountItems(roster["number"])
    requests = [client.request(count_items, node=node) for node in roster["nodes"]]
    try:
        return QueueCounts.of([await request.async_wait() for request in requests])
    except ClosedError as error:
        raise ClosedError(f"channel '{roster['name']}': {error}") from None


async def close(client: NodeClient, roster: Roster, *, discard: bool = False) -> None:
    """Close the queues and free the name. Queues on a lost node or behind a closed connection count as closed."""
    close_queue = operations.CloseChannel(roster["number"], discard)
    requests = [client.request(close_queue, node=node) for node in roster["nodes"]]
    for request in (*requests, client.request(operations.Release("channel", roster["number"]), node=0)):
        try:
            await request.async_wait()
        except (NodeLost, ClosedError):
            continue
