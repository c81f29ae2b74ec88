"""Resumption state of a link between nodes: a stream's messages, kept until acknowledged; the receiver's count.

A link outlives its connections. Both ends count the messages of each stream, from 1. When a connection is replaced,
each end tells the other how many messages it has received::

    sender                                        receiver
    outgoing.add(a); outgoing.take() -> a   ───►  incoming.add(...)     1
    outgoing.add(b); outgoing.take() -> b   ─ ─
    outgoing.resume(1)                      ◄───  incoming.received     (a new connection)
    outgoing.take() -> b                    ───►  incoming.add(...)     2
    outgoing.acknowledge(2)                 ◄───  incoming.acknowledge()

Messages arrive in the order of ``add``; none is lost or duplicated. ``_wire/daemon_link.py`` does the sending.
"""

from __future__ import annotations

from collections import deque
from typing import Final

# Number of unacknowledged messages at which the receiver acknowledges immediately; fewer are acknowledged with other
# traffic, or soon.
ACK_MESSAGES: Final = 64
ACK_BYTES: Final = 4 << 20


class OutgoingMessages:
    """The messages of one stream: those not yet written, and those that may have to be written again.

    Attributes:
        acknowledged: number of messages that the receiver has acknowledged.
        kept_bytes: size of the messages that were taken and are not yet acknowledged.
    """

    __slots__ = ("_kept", "_taken", "_waiting", "acknowledged", "kept_bytes")

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._kept: deque[list[bytes]] = deque()
        self._taken = 0  # number of kept messages written to the current connection
        self.acknowledged = 0
        self.kept_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_repeating(self) -> bool:
        return self._taken < len(self._kept)

    def add(self, part: bytes) -> None:
        self._waiting.append(part)

    def take(self, limit: int = 0) -> list[bytes]:
        """Return the next message as a list of parts of at most ``limit`` bytes in total; empty if no message waits."""
        if self.is_repeating:
            message = self._kept[self._taken]
        elif self._waiting:
            message = [self._waiting.popleft()]
            size = len(message[0])
            while self._waiting and size + len(self._waiting[0]) <= limit:
                size += len(self._waiting[0])
                message.append(self._waiting.popleft())
            self._kept.append(message)
            self.kept_bytes += size
        else:
            return []
        self._taken += 1
        return message

    def acknowledge(self, received: int) -> None:
        """Drop the first ``received`` messages. Ignore an outdated, smaller count; ValueError if more than sent."""
        if received - self.acknowledged > self._taken:
            raise ValueError(f"{received} messages were acknowledged, and {self.acknowledged + self._taken} sent")
        while self.acknowledged < received:
            self.acknowledged += 1
            self._taken -= 1
            self.kept_bytes -= sum(map(len, self._kept.popleft()))

    def resume(self, received: int) -> None:
        """Rewind to ``received`` messages on a reconnect; ValueError if fewer than acknowledged or more than sent."""
        if received < self.acknowledged:
            raise ValueError(f"{received} messages are said to have come, and {self.acknowledged} were acknowledged")
        # Count all kept messages as written: an interrupted resend has rewound the count, although the receiver may
        # have received them over an earlier connection.
        self._taken = len(self._kept)
        self.acknowledge(received)
        self._taken = 0

    def clear(self) -> None:
        self._waiting.clear()
        self._kept.clear()
        self._taken = self.kept_bytes = 0


class IncomingMessages:
    """The counts of one stream's received and acknowledged messages."""

    __slots__ = ("_acknowledged", "_bytes", "received")

    def __init__(self) -> None:
        self.received = self._acknowledged = 0
        self._bytes = 0

    def add(self, nbytes: int) -> bool:
        self.received += 1
        self._bytes += nbytes
        return self._bytes >= ACK_BYTES or self.received - self._acknowledged >= ACK_MESSAGES

    @property
    def is_owing(self) -> bool:
        return self.received > self._acknowledged

    def acknowledge(self) -> int:
        """Return the number of received messages, which the caller must send as an acknowledgement."""
        self._acknowledged, self._bytes = self.received, 0
        return self.received
