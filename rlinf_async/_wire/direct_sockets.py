"""A table of direct sockets to processes on the same node; the daemon relays the lost frames of a broken socket.

A socket that breaks while both processes are alive loses nothing. Each end tells the other, through the daemon, how
many frames it has received. The daemon then relays the missing frames, and frames sent in the meantime, once and in
order::

    this process ── RESUME 41 ──► daemon ──►  the other one: reads the rest, closes its socket
    this process ◄── RESUME 17 ── daemon ◄──
    sends from frame 18 on ─────► daemon ──►

If the other process has exited, the daemon answers in its place, with -1.
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
    """A table that maps peer endpoints to resumable connections, either all created or all received by this process.

    Args:
        send_resume: tells an endpoint, through the daemon, how many frames of the socket have arrived.
        relay: sends an endpoint a frame of the socket through the daemon.
        on_end: called with an endpoint, its connection, which is no longer used (None if it was never received), and
            whether the endpoint's process has exited.
    """

    def __init__(self, send_resume: SendResume, relay: Relay, on_end: OnEnd) -> None:
        self._send_resume = send_resume
        self._relay = relay
        self._on_end = on_end
        self.connections: dict[int, Connection | None] = {}
        """Maps each endpoint to its connection; None means that the endpoint must not have one."""
        self.find: Callable[[int], Connection | None] = self.connections.get
        self._broken: set[int] = set()
        self._replaced: set[int] = set()
        self._lost: set[int] = set()
        """Endpoints whose socket did not arrive, and which have not yet confirmed the loss."""

    def __repr__(self) -> str:
        return f"<DirectSockets [{len(self.connections)} connections, {len(self._broken)} of them broken]>"

    def add(self, peer: int, connection: Connection, others: DirectSockets | None) -> None:
        """Add a socket. ``others`` is the table for the opposite direction, whose sockets may carry its ACKs."""
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
        """Record that an endpoint's socket could not be received, so that the daemon relays its frames."""
        self._lost.add(peer)
        # The peer does the same, so neither side links later sockets.
        self._replaced.add(peer)
        self._send_resume(peer, 0)

    def resume(self, peer: int, received: int) -> None:
        """Continue through the daemon after the peer has stopped reading the socket.

        Args:
            received: number of frames that the peer has received; -1 if it has exited.
        """
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
            # FrameError means that the other side claims more frames than were sent. The claim is useless, so send
            # nothing again.
            with contextlib.suppress(FrameError):
                connection.hand_over(received, lambda frame, fds: self._relay(peer, frame, fds))
        # Remove the connection only now: a frame that finds no socket is relayed immediately, ahead of frames not
        # delivered by the socket. Until these are handed over, a new frame must find the socket and queue behind them.
        # tests/test_broken_sockets.py::test_calls_outlive_their_socket_and_run_once_in_order
        self.connections.pop(peer, None)
        self._broken.discard(peer)
        if received < 0:
            self._replaced.discard(peer)
            connection.drain_if_intact()
            connection.close()
        else:
            self._replaced.add(peer)
        self._on_end(peer, connection, received < 0)

    def drain(self, peer: int) -> None:
        """Read everything that an endpoint has sent, before its end is handled."""
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
