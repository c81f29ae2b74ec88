"""Records of a hosted channel: its queue, replies pending for its clients, descriptors of sealed memory."""

from __future__ import annotations

import os
from typing import Final

from rlinf_async._channels.state.queue import Queue

from .endpoint import Endpoint

_MAX_GONE_GROUPS: Final = 64


class Segment:
    """A descriptor of sealed memory; closed when its last reference goes."""

    __slots__ = ("fd", "size")

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size

    def __del__(self) -> None:
        os.close(self.fd)


class HostedChannel:
    """A channel's queue on this node."""

    __slots__ = ("gone_producers", "is_bounded", "name", "number", "owner", "pending", "queue")

    def __init__(self, number: int, name: str, owner: int, queue: Queue, is_bounded: bool = True) -> None:
        """``is_bounded`` is whether users have set a bound: then puts are done when they are accepted."""
        self.number = number
        self.name = name
        self.owner = owner
        self.queue = queue
        self.is_bounded = is_bounded
        self.pending: dict[int, PendingReplies] = {}
        """By client."""
        self.gone_producers: dict[str, set[int]] = {}
        """By group, those ranks of this node that have put here and have ended since; of the latest groups."""

    def note_gone(self, producer: Endpoint) -> None:
        """A process that has put here has ended."""
        if producer.process is None:
            return
        setup = producer.process.setup
        self.gone_producers.setdefault(setup.group, set()).add(setup.rank)
        if len(self.gone_producers) > _MAX_GONE_GROUPS:
            del self.gone_producers[next(iter(self.gone_producers))]


class PendingReplies:
    """Sent once per turn of the loop, in one frame: puts that were accepted, small items, room."""

    __slots__ = ("accepted", "freed", "given")

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.freed = 0
        self.given: list[tuple[int, bool, bool, bytes]] = []
