"""Hosted channels and the replies to their clients; small replies share one frame per client and turn of the loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, Final

from rlinf_async._channels.state.channel_keys import key_of
from rlinf_async._channels.state.queue import Queue
from rlinf_async._channels.state.queue_client import Demand, Item
from rlinf_async._core import frames
from rlinf_async._core.segment import close_fds

from .endpoint import Endpoint
from .router import Router

_MAX_ITEMS_PER_FRAME: Final = 1024

_MAX_GONE_GROUPS: Final = 64
_MAX_NAMED_KEYS: Final = 4


class SegmentFile:
    """A descriptor of sealed memory, closed when the last reference to this object is gone."""

    __slots__ = ("fd", "size")

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size

    def __del__(self) -> None:
        os.close(self.fd)


class LeaseTimer:
    # Cancelled with its lease; otherwise, the timers of leases that end long before they expire would accumulate.

    __slots__ = ("_timer",)

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self._timer = timer

    def __del__(self) -> None:
        self._timer.cancel()


class HostedChannel:
    """A channel's queue on this node."""

    noun = "channel"
    fewer = "fewer: get(), or get_many(n, wait=False)"  # advice in the error raised when descriptors run out

    __slots__ = ("gone_producers", "is_bounded", "name", "number", "owner", "pending", "queue")

    def __init__(self, number: int, name: str, owner: int, queue: Queue, is_bounded: bool = True) -> None:
        """``is_bounded``: a user has set a bound, so a put completes only when the queue accepts it."""
        self.number = number
        self.name = name
        self.owner = owner
        self.queue = queue
        self.is_bounded = is_bounded
        self.pending: dict[int, PendingReplies] = {}  # maps each client to replies due at the end of this turn
        self.gone_producers: dict[str, set[int]] = {}
        """Maps each of the latest ``_MAX_GONE_GROUPS`` groups to this node's ended ranks that have put items here."""

    def describe(self, key: bytes) -> str:
        items, (puts, gets) = self.queue.size(key), self.queue.waiting(key)
        used = len(self.queue.clients)
        other_keys = [repr(key_of(each)) for each in self.queue.used if each != key and self.queue.size(each)]
        more = f" and {len(other_keys) - _MAX_NAMED_KEYS} more" if len(other_keys) > _MAX_NAMED_KEYS else ""
        hint = (
            f"; there are items under {', '.join(other_keys[:_MAX_NAMED_KEYS])}{more}"
            if other_keys and not items
            else ""
        )
        return (
            f"{items} item{'s' * (items != 1)} under this key, {puts} put{'s' * (puts != 1)} and {gets} "
            f"get{'s' * (gets != 1)} wait; {used} process{'es' * (used != 1)} use{'s' * (used == 1)} the channel{hint}"
        )

    def ledger(self) -> dict[str, int]:
        """Return the counts of an experience's samples; an empty dict for a channel."""
        return {}

    async def written(self) -> None:
        """Wait until a durable experience has written the outcome of all its samples."""

    def ended(self) -> None:
        """Free resources when the queue ends."""

    def note_gone(self, producer: Endpoint) -> None:
        """Remember an ended rank that had put items here."""
        if producer.process is None:
            return
        setup = producer.process.setup
        self.gone_producers.setdefault(setup.group, set()).add(setup.rank)
        if len(self.gone_producers) > _MAX_GONE_GROUPS:
            del self.gone_producers[next(iter(self.gone_producers))]


class PendingReplies:
    """Replies sent in one frame per turn of the loop: accepted puts, small items, freed bytes."""

    __slots__ = ("accepted", "freed", "given")

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.freed = 0
        self.given: list[tuple[int, bool, bool, bytes]] = []


class ChannelReplies:
    """Replies to queues' clients; small replies are sent at the end of the loop's turn, in one frame per client."""

    def __init__(self, loop: asyncio.AbstractEventLoop, router: Router) -> None:
        self._loop = loop
        self._router = router
        self._me = frames.endpoint(router.node, 0)
        self._to_flush: list[HostedChannel] = []

    def __repr__(self) -> str:
        return f"<ChannelReplies [pending for {len(self._to_flush)} queues]>"

    def pending(self, hosted: HostedChannel, client: int) -> PendingReplies:
        pending = hosted.pending.get(client)
        if pending is None:
            if not hosted.pending:
                if not self._to_flush:
                    self._loop.call_soon(self.flush_all)
                self._to_flush.append(hosted)
            pending = hosted.pending[client] = PendingReplies()
        return pending

    def flush_all(self) -> None:
        to_flush, self._to_flush = self._to_flush, []
        for hosted in to_flush:
            clients, hosted.pending = hosted.pending, {}
            for client, pending in clients.items():
                self._reply(hosted, client, pending)

    def flush(self, hosted: HostedChannel, client: int) -> None:
        pending = hosted.pending.pop(client, None)
        if pending is not None:
            self._reply(hosted, client, pending)

    def _reply(self, hosted: HostedChannel, client: int, pending: PendingReplies) -> None:
        # Note each client once per turn. Each producer's first put is answered, so every producer is noted.
        self._note(hosted, client, has_put=bool(pending.accepted), has_got=bool(pending.given))
        self.send(client, hosted.number, "replies", [pending.accepted, pending.given, pending.freed])

    @staticmethod
    def _note(hosted: HostedChannel, client: int, *, has_put: bool = False, has_got: bool = False) -> None:
        known = hosted.queue.clients.get(client)
        if known is not None:
            known.has_put |= has_put
            known.has_got |= has_got

    def deliver(self, hosted: HostedChannel, get: Demand) -> None:
        """Send the items of a get: small ones at the end of the turn, others immediately."""
        items = get.items
        first = items[0].body
        if type(first) is bytes and len(first) <= frames.MAX_BATCHED_BYTES and (len(items) == 1 or _are_small(items)):
            for item in items:
                pending = self.pending(hosted, get.consumer)
                pending.given.append((get.number, item is not items[-1], item.redelivered, item.body))
                if len(pending.given) == _MAX_ITEMS_PER_FRAME:
                    self.flush(hosted, get.consumer)
            return
        self._note(hosted, get.consumer, has_got=True)
        self.flush(hosted, get.consumer)  # send earlier small items first, to keep the order
        self.give(hosted, get.consumer, get.number, items)

    def give(self, hosted: HostedChannel, target: int, number: int, items: Sequence[Item]) -> None:
        """Send all of the items, or none; raise OSError if their descriptors cannot be duplicated."""
        copies = _copies(items)
        for item, fds in zip(items, copies, strict=True):
            body = item.body.size if fds else item.body
            more = item is not items[-1]
            self._router.deliver(
                (
                    frames.GIVE, len(fds), self._me, target, hosted.number,
                    number, more, item.weight, item.redelivered, body,
                ),
                fds,
            )  # fmt: skip

    def send(self, target: int, channel: int, kind: str, facts: Any) -> None:
        self._router.deliver((frames.QUEUE, 0, self._me, target, channel, kind, facts))


def _are_small(items: Sequence[Item]) -> bool:
    return all(type(item.body) is bytes and len(item.body) <= frames.MAX_BATCHED_BYTES for item in items)


def _copies(items: Sequence[Item]) -> list[list[int]]:
    """Return duplicated descriptors per item: one for an item in sealed memory, none for an inline item."""
    copies: list[list[int]] = []
    try:
        for item in items:
            copies.append([os.dup(item.body.fd)] if type(item.body) is SegmentFile else [])
    except OSError:
        for fds in copies:
            close_fds(fds)
        raise
    return copies
