"""State machine of one stream at its receiver: matches arriving messages with posted receives, in order.

Receives and messages are paired in order as soon as both exist; an announced message counts as existing. A pair is
*delivered* once the message's content has arrived as well. Until then, the receive may be cancelled or the message
withdrawn, after which all pairs are formed again. Plain state: every method returns actions for its owner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

from rlinf_async import settings

_MISSING: Any = object()


class Message:
    """A message of a stream, at its receiver.

    Attributes:
        number: position in its stream, from 1.
        kind, about: the sender's description of the message.
        charge: bytes that it takes from the stream's window.
        content: the content once it has arrived; opaque to this module.
        failure: the error if the content is unavailable.
    """

    __slots__ = ("_is_requested", "about", "charge", "content", "failure", "is_announced", "kind", "number")

    def __init__(self, number: int, kind: int, about: Any) -> None:
        self.number = number
        self.kind = kind
        self.about = about
        self.charge = 0
        self.content: Any = _MISSING
        self.failure: Exception | None = None
        self.is_announced = False
        self._is_requested = False

    def __repr__(self) -> str:
        return f"<Message {self.number} {'complete' if self.is_complete else 'on its way'}>"

    @property
    def is_complete(self) -> bool:
        return self.content is not _MISSING

    def request_once(self) -> bool:
        """True the first time for an announced message: the caller must request its content from the sender."""
        first = self.is_announced and not self._is_requested
        self._is_requested = True
        return first


class ActionKind(Enum):
    """Kinds of action that the owner of ``Arrivals`` carries out."""

    DELIVER = auto()
    """Pass the message to the receive; call ``give_back`` if the receive does not take it."""
    GRANT = auto()
    REFUSE = auto()
    """Fail the receive and the send, because the receive refuses the message or the content is lost."""
    FAIL = auto()
    """Fail the receive, because no more messages will come."""


class Action(NamedTuple):
    """An action for the owner to carry out. ``why`` is an error or the text of a refusal."""

    kind: ActionKind
    receive: Any
    message: Message | None = None
    why: Any = None


Refuses = Callable[[Any, Message], str | None]


class _PostedReceive:
    """A posted receive that has no delivered message yet."""

    __slots__ = ("cancelled", "message", "order", "receive")

    def __init__(self, order: int, receive: Any) -> None:
        self.order = order
        self.receive = receive
        self.message: Message | None = None
        self.cancelled = False


class Arrivals:
    """The receiving side of one stream.

    Example:
        arrivals = Arrivals(refuses)
        arrivals.data(1, OBJECT, None, 100, content)       # []: no receive is posted yet
        arrivals.post(receive)                             # [Action(DELIVER, receive, message)]
        arrivals.due()                                     # None, or the total to report to the sender
    """

    def __init__(self, refuses: Refuses, room: int | None = None) -> None:
        self._refuses = refuses
        self._report_bytes = (int(settings.MESSAGE_WINDOW_BYTES()) if room is None else room) // 4
        self._last_order = 0
        self._next = 1
        self._open: dict[int, Message] = {}
        self._queue: deque[Message] = deque()
        self._posted: deque[_PostedReceive] = deque()
        self._wanted: dict[Any, _PostedReceive] = {}
        self._cancelled = 0
        """Number of cancelled receives that are still in ``_posted``."""
        self._paired: dict[int, _PostedReceive] = {}
        self._total = 0
        self._reported_total = 0
        self._waiting_for_room = 0
        self._error: Exception | None = None
        self._is_parted = False

    def __repr__(self) -> str:
        return f"<Arrivals [{len(self._queue)} messages queued, {len(self._wanted)} receives posted]>"

    @property
    def has_message(self) -> bool:
        """True if a new receive would get a message immediately."""
        return any(message.is_complete for message in self._queue)

    @property
    def is_idle(self) -> bool:
        return not self._open and not self._wanted

    # -- the receiver -------------------------------------------------------------------------------------------

    def post(self, receive: Any) -> list[Action]:
        """Post a receive of the next message. ``receive`` must be hashable and posted only once."""
        self._last_order += 1
        wanted = self._wanted[receive] = _PostedReceive(self._last_order, receive)
        self._posted.append(wanted)
        return self._match()

    def cancel(self, receive: Any) -> list[Action]:
        wanted = self._wanted.pop(receive, None)
        if wanted is None:
            return []  # the receive has a message, or has failed
        wanted.cancelled = True
        if wanted.message is not None:
            self._undo_pairs()
            return self._match()
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled > len(self._posted) // 2:
            self._posted = deque(each for each in self._posted if not each.cancelled)
            self._cancelled = 0
        return []

    def give_back(self, message: Message) -> list[Action]:
        """Return a delivered message to the head of the stream, because its receive was cancelled."""
        message.charge = 0  # the message's room was returned on delivery
        self._open[message.number] = message
        self._enqueue(message)
        self._undo_pairs()
        return self._match()

    # -- the sender ---------------------------------------------------------------------------------------------

    def announce(self, number: int, kind: int, about: Any) -> list[Action]:
        """Add a message whose content stays at its sender for now."""
        if not self._is_new(number) or self._error is not None:
            return []
        message = Message(number, kind, about)
        message.is_announced = True
        self._waiting_for_room += 1
        return self._arrive(message)

    def data(self, number: int, kind: int, about: Any, charge: int, content: Any = _MISSING) -> list[Action]:
        """Add a message. If ``content`` is not passed, it follows over a link."""
        if not self._is_new(number):
            return []
        message = Message(number, kind, about)
        message.charge = charge
        message.content = content
        if self._error is not None and (self._is_parted or not message.is_complete):
            return []
        return self._arrive(message)

    def expect(self, number: int, charge: int) -> Message | None:
        """Record that a link carries a message's content. Return None if it was withdrawn or is already complete."""
        message = self._open.get(number)
        if message is None or message.is_complete:
            self._total += charge
            return None
        self._no_longer_announced(message)
        message.charge += charge
        return message

    def wanted_by(self, number: int) -> Any:
        """Return the receive that is currently paired with a message, or None."""
        wanted = self._paired.get(number)
        return None if wanted is None else wanted.receive

    def content(self, number: int, charge: int, content: Any) -> list[Action]:
        """Complete a message; drop duplicate and late content."""
        message = self.expect(number, charge)
        if message is None:
            return []
        message.content = content
        wanted = self._paired.pop(number, None)
        if wanted is None:
            return []
        return [self._deliver(wanted, message)]

    def fail_content(self, number: int, error: Exception) -> list[Action]:
        """Fail a message whose content is unavailable; its paired receive gets the error."""
        message = self.expect(number, 0)
        if message is None:
            return []
        message.failure = error
        message.content = None
        wanted = self._paired.pop(number, None)
        return [] if wanted is None else [self._refuse(wanted, message, error)]

    def withdraw(self, number: int) -> list[Action]:
        """Remove a message that its sender has withdrawn, unless it was already delivered."""
        message = self._open.pop(number, None)
        if message is None:
            return []
        # Undo all pairs and form them again without the message, so that its receive gets the next message and all
        # later messages move up. Removing it from its own pair alone would let a later message pass an earlier one.
        # Return its room; otherwise the sender would stop after 64 MiB of withdrawn messages.
        # tests/_messaging/state/test_matching.py::test_what_is_withdrawn_on_its_way_returns_its_room
        # tests/_messaging/state/test_matching.py::test_a_withdrawn_message_never_was
        self._no_longer_announced(message)
        self._total += message.charge
        self._undo_pairs()
        self._queue.remove(message)
        return self._match()

    def fail(self, error: Exception, *, parts: bool = False) -> list[Action]:
        """End the stream. Complete messages stay; no more messages will arrive.

        Args:
            parts: True if another receiver of a broadcast has ended and the sender may continue. Later messages belong
                to receives that fail now, so the next receive must not get them.
        """
        self._is_parted = self._is_parted or parts
        if self._error is not None:
            return []
        self._error = error
        self._undo_pairs()
        for message in [message for message in self._queue if not message.is_complete]:
            self._queue.remove(message)
            del self._open[message.number]
        return self._match()

    def due(self) -> int | None:
        """Return the total of received bytes if a report to the sender is due, else None."""
        unreported = self._total - self._reported_total
        if not unreported or (unreported < self._report_bytes and not self._waiting_for_room):
            return None
        self._reported_total = self._total
        return self._total

    # -- pairs --------------------------------------------------------------------------------------------------

    def _is_new(self, number: int) -> bool:
        if number < self._next:
            return False  # the message is a duplicate
        self._next = number + 1
        return True

    def _arrive(self, message: Message) -> list[Action]:
        self._open[message.number] = message
        self._queue.append(message)
        return self._match()

    def _no_longer_announced(self, message: Message) -> None:
        if message.is_announced:
            message.is_announced = False
            self._waiting_for_room -= 1

    def _match(self) -> list[Action]:
        actions: list[Action] = []
        posted, queue = self._posted, self._queue
        while posted:
            wanted = posted[0]
            if wanted.cancelled:
                posted.popleft()
                continue
            if not queue:
                break
            posted.popleft()
            message = queue.popleft()
            why = message.failure or self._refuses(wanted.receive, message)
            if why is not None:
                actions.append(self._refuse(wanted, message, why))
            elif message.is_complete:
                actions.append(self._deliver(wanted, message))
            else:
                wanted.message = message
                self._paired[message.number] = wanted
                if message.request_once():
                    actions.append(Action(ActionKind.GRANT, None, message))
        if self._error is not None:
            actions += [
                Action(ActionKind.FAIL, wanted.receive, None, self._error) for wanted in posted if not wanted.cancelled
            ]
            posted.clear()
            self._wanted.clear()
            self._cancelled = 0
        return actions

    def _deliver(self, wanted: _PostedReceive, message: Message) -> Action:
        del self._wanted[wanted.receive]
        del self._open[message.number]
        self._total += message.charge
        return Action(ActionKind.DELIVER, wanted.receive, message)

    def _refuse(self, wanted: _PostedReceive, message: Message, why: Exception | str) -> Action:
        del self._wanted[wanted.receive]
        del self._open[message.number]
        self._no_longer_announced(message)
        self._total += message.charge
        return Action(ActionKind.REFUSE, wanted.receive, message, why)

    def _undo_pairs(self) -> None:
        if not self._paired:
            return
        paired, self._paired = self._paired, {}
        for wanted in paired.values():
            assert wanted.message is not None
            self._enqueue(wanted.message)
            wanted.message = None
        kept = [wanted for wanted in paired.values() if not wanted.cancelled]
        self._posted.extendleft(sorted(kept, key=lambda wanted: wanted.order, reverse=True))

    def _enqueue(self, message: Message) -> None:
        queue = self._queue
        place = 0
        while place < len(queue) and queue[place].number < message.number:
            place += 1
        queue.insert(place, message)
