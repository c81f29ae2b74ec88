"""Decides when a socket's acknowledgements are sent: each with the next frame, or alone after a delay."""

from __future__ import annotations

from asyncio import AbstractEventLoop

from rlinf_async import settings
from rlinf_async._core.resend import ACK_FRAMES, Incoming
from rlinf_async._wire.socket_writer import SocketWriter


class Acknowledgements:
    """Decides when acknowledgements of one connection are sent."""

    __slots__ = ("_incoming", "_is_timing", "_loop", "_writer")

    def __init__(self, incoming: Incoming, writer: SocketWriter, loop: AbstractEventLoop) -> None:
        self._incoming = incoming
        self._writer = writer
        self._loop = loop
        self._is_timing = False

    def consider(self) -> None:
        """After a read, send an overdue acknowledgement or start the timer."""
        incoming = self._incoming
        if incoming.owes():
            self._writer.send_acknowledgement()
        elif not self._is_timing and (incoming.descriptors or incoming.received >= incoming.look_at + ACK_FRAMES):
            # Do not send an acknowledgement as soon as it is due. If every frame is answered, the next answer carries
            # it, and starting a timer for each frame would slow down the loop.
            self._is_timing = True
            self._writer.on_loop(self._set_timer)

    def _set_timer(self) -> None:
        if not self._writer.is_closed:
            self._loop.call_later(settings.DIRECT_ACK_S(), self._late, self._incoming.acknowledged)

    def _late(self, acknowledged: int) -> None:
        # Reset the flag first, because a later frame must set another timer.
        self._is_timing = False
        if not self._incoming.is_due:
            return
        if self._incoming.acknowledged != acknowledged:
            self._is_timing = True
            self._set_timer()
        else:
            self._writer.send_acknowledgement()
