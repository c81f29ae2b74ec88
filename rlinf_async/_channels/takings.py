"""``Takings``: what a process has taken out of queues, said to their daemons together with the next requests."""

from __future__ import annotations

from typing import Final, Protocol

from rlinf_async._client.client import NodeClient
from rlinf_async._core.taken_page import NOTES

_WITHIN_S: Final = 2e-3
"""Seconds after which a daemon hears what was taken, if no request has said it before."""


class Queue(Protocol):
    """A queue from which something was taken."""

    def say_taken(self) -> None:
        """Sends what has not been said."""


class Takings:
    """The queues of one client that have not been told of everything; from any thread.

    An item is the consumer's once it is noted in the page that the client's daemon reads after a death.  A client
    without a page says it at once.
    """

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self._queues: dict[Queue, None] = {}
        self._noted = 0
        self._is_due = False

    def __repr__(self) -> str:
        return f"<Takings [{len(self._queues)} queues]>"

    def note(self, queue: Queue, place: int, channel: int, get: int, count: int) -> None:
        """The first ``count`` items of a get are taken, which the queue says when it says anything."""
        page = self._client.taken_page
        if page is None:
            queue.say_taken()
            return
        page.note(place, channel, get, count)
        self._noted += 1
        self._queues[queue] = None
        if not self._is_due:
            self._is_due = True
            self._client.later(_WITHIN_S, self.say)
        elif self._noted >= NOTES // 2:  # the page holds no more, and the loop may be busy
            self.say()

    def say(self) -> None:
        self._is_due = False
        self._noted = 0
        for queue in list(self._queues):
            self._queues.pop(queue, None)
            queue.say_taken()
