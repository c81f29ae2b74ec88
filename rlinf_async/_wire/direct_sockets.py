"""Table of direct sockets to processes of this node; frames that a broken one lost go by way of the daemon.

A socket that breaks while both processes live loses nothing. Each end tells the other, by way of the daemon, how many
frames it has received. The missing frames go by way of the daemon too, once and in order, and so do frames sent
meanwhile::

    this process ── RESUME 41 ──► daemon ──►  the other one: reads what is left, ends its socket
    this process ◄── RESUME 17 ── daemon ◄──
    sends from frame 18 on ─────► daemon ──►

If the other process has ended, the daemon answers for it (-1).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_async._core.frames import FrameError
from rlinf_async._wire.unix import Connection

SendResume = Callable[[int, int], None]
Relay = Callable[[int, list[Any], Sequence[int]], None]
OnEnd = Callable[[int, Connection | None, bool], None]


class DirectSockets:
    """Resumable connections by the endpoint at their other end; either all made by this process, or all given to it.

    Args:
        send_resume: tells an endpoint, by way of the daemon, how many frames of their socket have arrived.
        relay: sends an endpoint a frame of that socket by way of the daemon.
        on_end: called with an endpoint, its connection, which is not used any more (None if it never arrived here), and
            True if its process has ended.
    """

    def __init__(self, send_resume: SendResume, relay: Relay, on_end: OnEnd) -> None:
        self._send_resume = send_resume
        self._relay = relay
        self._on_end = on_end
        self.connections: dict[int, Connection | None] = {}
        """Connections by endpoint; None means that an endpoint must have none."""
        self.find: Callable[[int], Connection | None] = self.connections.get
        self._broken: set[int] = set()
        self._replaced: set[int] = set()
        self._lost: set[int] = set()
        """Endpoints whose socket has not arrived here, and which have not confirmed that they know."""

    def __repr__(self) -> str:
        return f"<DirectSockets [{len(self.connections)} connections, {len(self._broken)} of them broken]>"

    def add(self, peer: int, connection: Connection, others: DirectSockets | None) -> None:
        """Add a socket; the other side has made, or has been given, the sockets of the table ``others``."""
        self.connections[peer] = connection
        sibling = others.find(peer) if others is not None else None
        if others is not None and sibling is not None and peer not in self._replaced and peer not in others._replaced:
            connection.link(sibling)

    def broke(self, peer: int) -> None:
        connection = self.connections.get(peer)
        if connection is not None and peer not in self._broken:
            self._broken.add(peer)
            self._send_resume(peer, connection.received)

    def lost(self, peer: int) -> None:
        """Note that an endpoint's socket could not be received: its frames go by way of the daemon."""
        self._lost.add(peer)
        self._replaced.add(peer)  # the peer does the same: neither side links later sockets
        self._send_resume(peer, 0)

    def resume(self, peer: int, received: int) -> None:
        """Resume by way of the daemon: the endpoint has received so many frames and reads no more; -1: it has ended."""
        connection = self.connections.get(peer)
        if connection is None:
            if received < 0:
                self._on_end(peer, None, True)
            elif peer not in self._lost:
                self._replaced.add(peer)
                self._send_resume(peer, 0)
            self._lost.discard(peer)
            return
        if received >= 0:
            connection.drain_if_intact()
            connection.end()
            self.broke(peer)
            # The other side claims more frames than were sent: the claim is useless, and nothing is sent twice.
            with contextlib.suppress(FrameError):
                connection.hand_over(received, lambda frame, fds: self._relay(peer, frame, fds))
        # Only now: a frame that finds no socket goes by way of the daemon at once, ahead of frames that the socket has
        # not delivered. Until these are handed over, a new frame must find the socket and queue behind them.
        # tests/test_broken_sockets.py::test_calls_outlive_their_socket_and_run_once_in_order
        self.connections.pop(peer, None)
        self._broken.discard(peer)
        self._replaced.add(peer)
        if received < 0:
            connection.drain_if_intact()
            connection.close()
        self._on_end(peer, connection, received < 0)

    def drain(self, peer: int) -> None:
        """Read everything that an endpoint sent before its end is handled."""
        connection = self.connections.get(peer)
        if connection is not None:
            connection.drain_if_intact()

    def close(self) -> None:
        for connection in self.connections.values():
            if connection is not None:
                connection.close()
        self.connections.clear()

    def forget(self) -> None:
        for connection in self.connections.values():
            if connection is not None:
                connection.forget()
        self.connections.clear()
