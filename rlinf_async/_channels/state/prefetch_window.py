"""Read-ahead: gets that a process sends under a key before its callers ask, because they have asked again and again.

Of each the number is known, and what it has brought once it has; a caller takes the oldest, brought or not: what was
asked for first is had first.  The other side of it is ``_channels/state/prefetch.py``.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

Delivery = tuple[Any, list[int], bool]
"""The body of an item, its descriptors, and whether it is redelivered."""

WINDOW: Final = 16
"""Gets that are ahead of the callers of one key."""

LARGE_WINDOW: Final = 4
"""Those that are where items come in memory of their own."""

MAX_ITEM_BYTES: Final = 4 << 20
"""Bytes; of what is larger the copy takes so long that nothing is gained by asking early."""

MIN_STREAK: Final = 8
"""Items that a caller has had, one by one and each soon after the other, before any get is sent ahead of it.  Who has
several gets under way does not need it."""

MAX_GAP_S: Final = 5e-3
"""Seconds."""

IDLE_S: Final = 0.05
"""Seconds without a caller, after which everything goes back."""

BACK_OFF_S: Final = 1.0
"""Seconds without read-ahead, after somebody else has asked for something under the key."""

_MAX_KEYS: Final = 64
"""That are kept in mind."""


@dataclass(slots=True)
class Window:
    """Of one key.

    Attributes:
        numbers: the gets that nobody has taken, oldest first.
        arrived: what they have brought, so far.
        streak: items that callers have had, each soon after the other, and none was asked for before the last was had.
        asked_at: when a caller asked last.
        latest: the get that was asked for last.
        limit: gets that may be ahead; as many as is good for items of the size of the last one.
        off_until: seconds of the monotonic clock, as all.
    """

    numbers: deque[int] = field(default_factory=deque)
    arrived: dict[int, Delivery] = field(default_factory=dict)
    streak: int = 0
    asked_at: float = 0.0
    latest: int = 0
    limit: int = field(default_factory=lambda: WINDOW)
    off_until: float = 0.0


class PrefetchWindows:
    """The windows of one queue.  Plain state; whoever uses it holds ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.open: dict[bytes, Window] = {}
        """Those that have gets."""
        self._windows: dict[bytes, Window] = {}
        self._under_way: dict[int, Window] = {}
        """By number, where nothing has arrived yet."""

    def __repr__(self) -> str:
        return f"<PrefetchWindows [{len(self.open)} keys, {len(self._under_way)} gets under way]>"

    # -- callers ------------------------------------------------------------------------------------------------

    def asked(self, key: bytes, number: int) -> None:
        """A caller has asked, and it was none of those ahead."""
        window = self._windows.get(key)
        if window is not None:
            window.latest = number

    def had(self, key: bytes, number: int, asked_at: float) -> bool:
        """A caller has what this get brought; whether gets may be sent ahead from now on.

        Needs no lock.
        """
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= _MAX_KEYS:
                self._windows = dict(self.open)
            window = self._windows.setdefault(key, Window())
        if number != window.latest:
            window.streak = 0
            return False
        if asked_at - window.asked_at > MAX_GAP_S:
            window.streak = 0
        window.asked_at = asked_at
        window.streak += 1
        return window.streak >= MIN_STREAK and not window.numbers and asked_at >= window.off_until

    def large(self, key: bytes, nbytes: int) -> None:
        """What has come has memory of its own, so many bytes."""
        window = self._windows.get(key)
        if window is not None:
            _limit(window, nbytes)

    def take(self, key: bytes, asked_at: float) -> tuple[int, Delivery | None] | None:
        """The oldest get is a caller's now, and what it has brought, if it has; None if there is none."""
        window = self.open.get(key)
        if window is None:
            return None
        if asked_at - window.asked_at > MAX_GAP_S:
            window.streak = 0
        window.asked_at = asked_at
        number = window.latest = window.numbers.popleft()
        delivery = window.arrived.pop(number, None)
        if delivery is None:
            del self._under_way[number]
        if not window.numbers:
            del self.open[key]
        return number, delivery

    def wanted(self, key: bytes) -> int:
        """How many more gets are to be sent ahead now; several at a time."""
        window = self._windows.get(key)
        if window is None or window.streak < MIN_STREAK:
            return 0
        missing = window.limit - len(window.numbers)
        return missing if missing * 2 >= window.limit else 0

    def limit(self, key: bytes) -> int:
        """How many gets may be ahead."""
        window = self._windows.get(key)
        return WINDOW if window is None else window.limit

    def sent(self, key: bytes, numbers: list[int]) -> None:
        """These are ahead too."""
        window = self.open[key] = self._windows.setdefault(key, Window())
        window.numbers.extend(numbers)
        for number in numbers:
            self._under_way[number] = window

    # -- the queue ----------------------------------------------------------------------------------------------

    def arrived(self, number: int, delivery: Delivery) -> bool:
        """False if that is no get which is ahead."""
        window = self._under_way.pop(number, None)
        if window is None:
            return False
        window.arrived[number] = delivery
        if delivery[1]:
            _limit(window, delivery[0])
        else:
            window.limit = WINDOW
        return True

    def ended(self, number: int) -> bool:
        """Nothing will come of it; False if that is no get which is ahead."""
        window = self._under_way.pop(number, None)
        if window is None:
            return False
        window.numbers.remove(number)
        if not window.numbers:
            self.open = {key: window for key, window in self.open.items() if window.numbers}
        return True

    # -- back ---------------------------------------------------------------------------------------------------

    def is_stale(self, key: bytes, now: float) -> bool:
        """Nobody has asked for so long that what is there may be somebody else's by now."""
        return now - self.open[key].asked_at > IDLE_S

    def stale(self, now: float) -> list[bytes]:
        """The keys of which that is so."""
        return [key for key in self.open if self.is_stale(key, now)]

    def back_off(self, key: bytes, now: float) -> None:
        """Somebody else has asked for something under this key."""
        window = self._windows.get(key)
        if window is not None:
            window.off_until = now + BACK_OFF_S

    def may_begin(self, key: bytes) -> bool:
        """Whether ``had`` would say so still: no other thread has begun, or asked for something else, since then."""
        window = self._windows.get(key)
        return window is not None and not window.numbers and window.streak >= MIN_STREAK

    def interrupt(self, key: bytes) -> None:
        """This process asks for something else under this key: it begins anew."""
        window = self._windows.get(key)
        if window is not None:
            window.streak = 0

    def give_back(self, key: bytes) -> tuple[list[int], list[Delivery]]:
        """All gets of a key that no caller has taken, and what they had brought."""
        window = self.open.pop(key, None)
        if window is None:
            return [], []
        numbers, arrived = list(window.numbers), list(window.arrived.values())
        for number in numbers:
            self._under_way.pop(number, None)
        window.numbers.clear()
        window.arrived.clear()
        window.streak = 0
        return numbers, arrived


def _limit(window: Window, nbytes: int) -> None:
    if nbytes > MAX_ITEM_BYTES:
        window.streak = 0
    window.limit = LARGE_WINDOW
