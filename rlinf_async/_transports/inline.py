"""``InlineLink``, the fallback ``Link``: sends buffers in pieces in MESSAGE frames, within the receiver's window.

The link needs neither shared memory nor a connection beyond the two workers' existing sockets. The receiver requests a
transfer, and limits the pieces in transit so that no process in between must buffer much::

    sender                                      receiver
    send(7, …)       ◄── "begin", 7, window ──  receive(7, …)
    "piece", 7, …  ──────────────────────────►  copies it to its place
    another piece      ◄── "more", 7 ───────────
    send(7) is done  ◄── "end", 7 ────────────  receive(7) is done
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from rlinf_async._transports.link import Link, Post
from rlinf_async.errors import TransferFailed
from rlinf_async.work import Work

PIECE_BYTES: Final = 256 * 1024
_WINDOW_PIECES: Final = 8


class _InlineSend(Work[None]):
    def __init__(self, buffers: Sequence[memoryview]) -> None:
        super().__init__()
        self.buffers = [buffer.cast("B") for buffer in buffers if buffer.nbytes]
        self.place = 0
        self.offset = 0

    def next_piece(self) -> bytes | None:
        """Return the next bytes of the concatenated buffers; None at the end."""
        if self.place == len(self.buffers):
            return None
        buffer = self.buffers[self.place]
        piece = bytes(buffer[self.offset : self.offset + PIECE_BYTES])
        self.offset += len(piece)
        if self.offset == buffer.nbytes:
            self.place, self.offset = self.place + 1, 0
        return piece


class _InlineReceive(Work[list[memoryview]]):
    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.buffers = [memoryview(bytearray(size)) for size in sizes]
        self.place = 0
        self.offset = 0

    def take(self, piece: bytes) -> None:
        """Write a piece after the previous one. Raise ValueError if the buffers are full."""
        while self.place < len(self.buffers) and self.offset == self.buffers[self.place].nbytes:
            self.place, self.offset = self.place + 1, 0
        self.buffers[self.place][self.offset : self.offset + len(piece)] = piece
        self.offset += len(piece)

    def is_whole(self) -> bool:
        return all(not buffer.nbytes for buffer in self.buffers[self.place + 1 :]) and (
            self.place == len(self.buffers) or self.offset == self.buffers[self.place].nbytes
        )


class InlineLink(Link):
    """A link that sends buffers of any size in pieces through the sockets; ignores ``first`` and ``address``."""

    def __init__(self, post: Post, first: bool = True, address: str = "") -> None:
        self._post = post
        self._lock = threading.Lock()
        self._sendings: dict[int, _InlineSend] = {}
        self._receivings: dict[int, _InlineReceive] = {}
        self._requested: set[int] = set()

    def __repr__(self) -> str:
        return f"<InlineLink [{len(self._sendings)} to send, {len(self._receivings)} to receive]>"

    def send(self, transfer: int, buffers: Sequence[memoryview]) -> Work[None]:
        sending = _InlineSend(buffers)
        if not sending.buffers:
            sending._settle()
            return sending
        with self._lock:
            self._sendings[transfer] = sending
            is_requested = transfer in self._requested
            self._requested.discard(transfer)
        if is_requested:
            self._begin(transfer)
        return sending

    def receive(self, transfer: int, sizes: Sequence[int]) -> Work[list[memoryview]]:
        try:
            receiving = _InlineReceive(sizes)
        except MemoryError:
            failed: Work[list[memoryview]] = Work()
            failed._settle(error=TransferFailed(f"there is no memory for a message of {sum(sizes)} bytes"))
            return failed
        if receiving.is_whole():
            receiving._settle(receiving.buffers)
            return receiving
        with self._lock:
            self._receivings[transfer] = receiving
        self._post(["begin", transfer])
        return receiving

    def on_control(self, facts: Any) -> None:
        kind, *rest = facts
        if kind == "begin":
            with self._lock:
                known = rest[0] in self._sendings
                if not known:
                    self._requested.add(rest[0])
            if known:
                self._begin(rest[0])
        elif kind == "more":
            self._send_piece(rest[0])
        elif kind == "piece":
            self._take(*rest)
        elif kind == "end":
            with self._lock:
                sending = self._sendings.pop(rest[0], None)
            if sending is not None:
                sending._settle()
        elif kind == "broken":
            sent, received, why = rest
            self._fail(received, sent, TransferFailed(f"the other worker gave it up: {why}"))

    def discard(self, error: Exception, transfer: int | None = None) -> None:
        with self._lock:
            sent = [number for number in self._sendings if transfer in (None, number)]
            received = list(self._receivings) if transfer is None else []
        self._fail(sent, received, error)
        if sent or received:
            self._post(["broken", sent, received, str(error)])

    def _begin(self, transfer: int) -> None:
        for _ in range(_WINDOW_PIECES):
            self._send_piece(transfer)

    def _send_piece(self, transfer: int) -> None:
        with self._lock:
            sending = self._sendings.get(transfer)
            piece = None if sending is None else sending.next_piece()
            if piece is not None:
                self._post(["piece", transfer, piece])

    def _take(self, transfer: int, piece: bytes) -> None:
        with self._lock:
            receiving = self._receivings.get(transfer)
        if receiving is None:
            return
        receiving.take(piece)
        if not receiving.is_whole():
            self._post(["more", transfer])
            return
        with self._lock:
            self._receivings.pop(transfer, None)
        self._post(["end", transfer])
        receiving._settle(receiving.buffers)

    def _fail(self, sent: Sequence[int], received: Sequence[int], error: Exception) -> None:
        works: list[Work[Any] | None] = []
        with self._lock:
            self._requested -= set(sent)
            works += [self._sendings.pop(number, None) for number in sent]
            works += [self._receivings.pop(number, None) for number in received]
        for work in works:
            if work is not None:
                work._settle(error=error)
