"""Sender's records of a message under way (``InFlight``) and its stream (``SendStream``), kept by the outbox."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Any

from rlinf_async._core.error_copy import copy_of
from rlinf_async._messaging.operation import Sending
from rlinf_async._messaging.peer import Peer
from rlinf_async._messaging.relayed_broadcast import RelayedBroadcast
from rlinf_async._messaging.state.flow_control import SendWindow, WindowEntry


class InFlight(WindowEntry):
    """Message under way, until its operation is done.

    Attributes:
        awaited: endpoints that have not confirmed the content yet.
        links: links used for the content, with the number of the transfer on each.
        attempts: transfers started in all.
        by_gpu: True if the latest transfer was from GPU to GPU.
        relay: relayed broadcast that carries the content, or None.
        certain: endpoints that it has left for by a transport that loses nothing while both sides live.
    """

    __slots__ = ("attempts", "awaited", "by_gpu", "certain", "links", "relay", "sending")

    def __init__(self, sending: Sending, receivers: Sequence[Peer]) -> None:
        super().__init__(sending.payload.nbytes)
        self.sending = sending
        self.awaited = dict.fromkeys(peer.endpoint for peer in receivers)
        self.links: list[tuple[Any, int]] = []
        self.attempts = 0
        self.by_gpu = False
        self.relay: RelayedBroadcast | None = None
        self.certain: Collection[int] = ()

    def end_transfers(self, error: Exception) -> None:
        for link, transfer in self.links:
            link.discard(copy_of(error), transfer)

    def end_relay(self) -> None:
        relay, self.relay = self.relay, None
        if relay is not None:
            relay.close()


class SendStream:
    """Sending end of a stream of messages."""

    __slots__ = ("id", "is_same_node", "open", "order", "other_nodes", "receivers", "window")

    def __init__(self, stream_id: Any, receivers: Sequence[Peer], node: int) -> None:
        self.id = stream_id
        self.receivers = receivers
        self.is_same_node = all(peer.node == node for peer in receivers)
        """True if all receivers are on this node."""
        self.other_nodes = len({peer.node for peer in receivers} - {node})
        self.window: SendWindow[InFlight] = SendWindow(peer.endpoint for peer in receivers)
        self.order = threading.RLock()
        """Lock held from the numbering of a message to its frame, so that frames leave in the order of their numbers.

        It is reentrant: if a link refuses a message at once, the message takes another way and may be done before the
        lock is released, and its ``then`` callback may send the next one.
        tests/_messaging/test_moments.py::test_who_sends_again_when_a_send_is_done_may_do_so_while_that_leaves
        """
        self.open: dict[int, InFlight] = {}
