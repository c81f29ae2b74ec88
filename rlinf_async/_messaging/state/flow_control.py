"""Sender-side flow control of one message stream: a window of bytes, and the messages that wait for it.

A message leaves at once as long as what was sent and not received yet is small enough.  Any other one is announced,
so that its place in the line is fixed, and its content follows when there is room for it again, or when every receiver
has a receive for it.  Plain state: its owner sends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from rlinf_async import settings

MESSAGE_OVERHEAD_BYTES: Final = 128
"""Bytes that any message is charged beyond its content, so that empty ones do not come for nothing."""


class WindowEntry:
    """One message of a stream, at its sender; the owner's messages are of this class.

    Attributes:
        number: in its stream, from 1.
        charge: bytes of room that it takes; 0 while it is only announced, and where its receivers have asked for it.
        left: its content has been, or is being sent.
    """

    __slots__ = ("charge", "cost", "left", "number", "waits_for")

    def __init__(self, nbytes: int) -> None:
        self.number = 0
        self.cost = nbytes + MESSAGE_OVERHEAD_BYTES
        self.charge = 0
        self.left = False
        self.waits_for: set[int] = set()
        """Receivers that have not asked for it."""

    def __repr__(self) -> str:
        return f"<WindowEntry {self.number} {'left' if self.left else 'announced'} [{self.cost} bytes]>"


Entry = TypeVar("Entry", bound=WindowEntry)


class SendWindow(Generic[Entry]):
    """The sender's side of one stream.

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
        """Those of the announced that would fit, in order."""

    def __repr__(self) -> str:
        return f"<SendWindow {self.outstanding} bytes outstanding [{len(self._announced)} announced]>"

    @property
    def outstanding(self) -> int:
        """Bytes that were sent and that some receiver has not received."""
        return self._sent - min(self._received.values())

    def has_room(self, entry: WindowEntry) -> bool:
        """Whether a message would leave at once."""
        return not self._in_line and self.outstanding + entry.cost <= self._room

    def add(self, entry: Entry) -> Entry:
        """The next message: to be sent if it has ``left``, otherwise to be announced."""
        self._numbers += 1
        entry.number = self._numbers
        if self.has_room(entry):
            self._charge(entry)
            return entry
        entry.waits_for = set(self._received)
        self._announced[entry.number] = entry
        if entry.cost <= self._room:
            self._in_line[entry.number] = entry
        return entry

    def received(self, receiver: int, total: int) -> list[Entry]:
        """A receiver has received so many bytes in all: the messages to send now, in order."""
        self._received[receiver] = max(total, self._received[receiver])
        return self.leaving()

    def leaving(self) -> list[Entry]:
        """The announced messages for which there is room: to be sent now, in order."""
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
        """A receiver asks for a message: the message, if it is to be sent now."""
        entry = self._announced.get(number)
        if entry is None:
            return None  # it has left meanwhile, or is withdrawn
        entry.waits_for.discard(receiver)
        if entry.waits_for:
            return None
        self._forget(number)
        entry.left = True
        return entry

    def undo(self, entry: Entry) -> None:
        """It was to leave, and its content could not be sent."""
        self._sent -= entry.charge
        entry.charge = 0

    def withdraw(self, number: int) -> bool:
        """Its send was given up.  False if it has left."""
        return self._forget(number) is not None

    def fail(self) -> list[Entry]:
        """The stream is at its end: what has not left, and will not."""
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
