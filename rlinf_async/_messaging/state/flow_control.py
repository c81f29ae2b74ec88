"""Sender-side flow control of one message stream: a window of bytes, and the messages that wait for room.

A message is sent immediately if it fits into the window, which limits the bytes sent but not yet received. Any other
message is announced, which fixes its place in the stream; its content follows once the window has room, or once every
receiver has posted a receive for the message. The window is plain state; its owner does the sending.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from rlinf_async import settings

MESSAGE_OVERHEAD_BYTES: Final = 128
"""Bytes charged for each message in addition to its content, so that empty messages count as well."""


class WindowEntry:
    """A message of a stream, at its sender; base class of the owner's messages.

    Attributes:
        number: position in its stream, from 1.
        cost: bytes that it would take from the window.
        charge: bytes charged to the window; 0 if it is only announced, or if its receivers have requested it.
        left: True if its content has been sent or is being sent.
        waits_for: receivers that have not yet requested it.
    """

    __slots__ = ("charge", "cost", "left", "number", "waits_for")

    def __init__(self, nbytes: int) -> None:
        self.number = 0
        self.cost = nbytes + MESSAGE_OVERHEAD_BYTES
        self.charge = 0
        self.left = False
        self.waits_for: set[int] = set()

    def __repr__(self) -> str:
        return f"<WindowEntry {self.number} {'left' if self.left else 'announced'} [{self.cost} bytes]>"


Entry = TypeVar("Entry", bound=WindowEntry)


class SendWindow(Generic[Entry]):
    """The sending side of one stream.

    Example:
        window = SendWindow([7])
        window.add(WindowEntry(100)).left             # True: send it
        window.add(WindowEntry(1 << 30)).left         # False: announce it
        window.granted(7, 2)                          # the giant: send it now
    """

    def __init__(self, receivers: Iterable[int], room: int | None = None) -> None:
        self._received = dict.fromkeys(receivers, 0)
        self._room = int(settings.MESSAGE_WINDOW_BYTES()) if room is None else room
        self._sent = 0
        self._numbers = 0
        self._announced: dict[int, Entry] = {}
        self._in_line: dict[int, Entry] = {}

    def __repr__(self) -> str:
        return f"<SendWindow {self.outstanding} bytes outstanding [{len(self._announced)} announced]>"

    @property
    def outstanding(self) -> int:
        """Return the number of bytes sent but not yet received by every receiver."""
        return self._sent - min(self._received.values())

    def has_room(self, entry: WindowEntry) -> bool:
        # Even a message that fits must wait behind announced messages; otherwise a flow of small messages could delay a
        # large one forever.
        return not self._in_line and self.outstanding + entry.cost <= self._room

    def add(self, entry: Entry) -> Entry:
        """Number the next message. The caller sends it if ``left`` is true, and announces it otherwise."""
        self._numbers += 1
        entry.number = self._numbers
        if self.has_room(entry):
            self._charge(entry)
            return entry
        entry.waits_for = set(self._received)
        self._announced[entry.number] = entry
        # A message larger than the whole window would block the queue forever, so it is sent only once all receivers
        # have requested it.
        if entry.cost <= self._room:
            self._in_line[entry.number] = entry
        return entry

    def received(self, receiver: int, total: int) -> list[Entry]:
        """Record a receiver's total of received bytes. Return the messages to send now, in order."""
        self._received[receiver] = max(total, self._received[receiver])
        return self.leaving()

    def leaving(self) -> list[Entry]:
        """Return the announced messages that fit now, in order, and charge them."""
        leaving: list[Entry] = []
        while self._in_line:
            entry = next(iter(self._in_line.values()))
            if self.outstanding + entry.cost > self._room:
                break
            self._forget(entry.number)
            self._charge(entry)
            leaving.append(entry)
        return leaving

    def granted(self, receiver: int, number: int) -> Entry | None:
        """Record that a receiver requests a message. Return the message once all receivers have requested it."""
        entry = self._announced.get(number)
        if entry is None:
            return None  # the message was sent or withdrawn
        entry.waits_for.discard(receiver)
        if entry.waits_for:
            return None
        self._forget(number)
        entry.left = True
        return entry

    def undo(self, entry: Entry) -> None:
        self._sent -= entry.charge
        entry.charge = 0

    def withdraw(self, number: int) -> bool:
        """Drop an abandoned message. Return False if it has been sent."""
        return self._forget(number) is not None

    def fail(self) -> list[Entry]:
        """End the stream. Return the unsent messages."""
        announced = list(self._announced.values())
        self._announced.clear()
        self._in_line.clear()
        return announced

    def _charge(self, entry: Entry) -> None:
        entry.left = True
        entry.charge = entry.cost
        self._sent += entry.cost

    def _forget(self, number: int) -> Entry | None:
        self._in_line.pop(number, None)
        return self._announced.pop(number, None)
