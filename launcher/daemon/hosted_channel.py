"""A channel hosted by this daemon: its queue, and what its clients have not been told yet."""

from __future__ import annotations

import os

from rlinf_async._channels.state.prefetch import Prefetch
from rlinf_async._channels.state.queue import Queue


class Segment:
    """A descriptor of sealed memory; closed when the last who holds it lets go."""

    __slots__ = ("fd", "size")

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size

    def __del__(self) -> None:
        os.close(self.fd)


class HostedChannel:
    """A channel's queue on this node."""

    __slots__ = ("closers", "is_listed", "name", "number", "owner", "pending", "prefetch", "queue")

    def __init__(self, number: int, name: str, owner: int, queue: Queue) -> None:
        self.number = number
        self.name = name
        self.owner = owner
        self.queue = queue
        self.prefetch = Prefetch(queue)
        self.pending: dict[int, PendingReplies] = {}
        """By client, what it has not been told yet."""
        self.is_listed = False
        """It is among those that have pending."""
        self.closers: list[tuple[int, int]] = []
        """Asks that are answered when it is closed."""


class PendingReplies:
    """Told once per turn of the loop, in one frame: whose puts were accepted, small items that were given, credit."""

    __slots__ = ("accepted", "credit", "given")

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.credit = 0
        self.given: list[tuple[int, bool, bool, bytes]] = []
