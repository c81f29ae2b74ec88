"""Sender's records of a message under way (``InFlight``) and its stream (``SendStream``), kept by the outbox."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from rlinf_async._messaging.operation import Sending
from rlinf_async._messaging.peer import Peer
from rlinf_async._messaging.state.flow_control import SendWindow, WindowEntry


class InFlight:
    """One message, until its operation is done.

    Attributes:
        awaited: endpoints whose word that they have the content is awaited.
        links: that were used for it, ``attempts`` times in all.
        by_gpu: the last of them was one between GPUs.
        is_certain: it has left by a way on which nothing is lost as long as both sides live.
    """

    __slots__ = ("attempts", "awaited", "by_gpu", "entry", "is_certain", "links", "sending")

    def __init__(self, sending: Sending, receivers: Sequence[Peer]) -> None:
        self.sending = sending
        self.entry: WindowEntry
        self.awaited = dict.fromkeys(peer.endpoint for peer in receivers)
        self.links: list[Any] = []
        self.attempts = 0
        self.by_gpu = False
        self.is_certain = False


class SendStream:
    """A stream of messages, at its sender."""

    __slots__ = ("id", "is_same_node", "open", "order", "receivers", "window")

    def __init__(self, stream_id: Any, receivers: Sequence[Peer], node: int) -> None:
        self.id = stream_id
        self.receivers = receivers
        self.is_same_node = all(peer.node == node for peer in receivers)
        """The receivers are all on this node."""
        self.window = SendWindow(peer.endpoint for peer in receivers)
        self.order = threading.Lock()
        """Held from a message's number to its frame, which leave in one order."""
        self.open: dict[int, InFlight] = {}
