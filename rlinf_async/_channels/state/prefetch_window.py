"""Consumer-side windows of prefetched gets, per key: how many to send ahead, growth, back-off, giving back.

Of each prefetched get the number is known, and its item once that has arrived.  A caller takes the oldest, arrived or
not: items are had in the order in which they were asked for.  The queue's side is ``prefetch.py``.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

Delivery = tuple[Any, list[int], bool]
"""The body of an item, its descriptors, and whether it is redelivered."""

WINDOW: Final = 16
"""Gets that are ahead of the callers of one key, at first."""

MAX_WINDOW: Final = 64
"""The same, once callers have had so many items in one streak."""

LARGE_WINDOW: Final = 4
"""The same, where items come in memory of their own."""

MAX_ITEM_BYTES: Final = 4 << 20
"""Of a larger item the copy takes so long that nothing is gained by asking early."""

MIN_STREAK: Final = 8
"""Items that callers have had, each asked for soon after the other, before gets are prefetched."""

MAX_GAP_S: Final = 5e-3
"""Between two gets of such a streak."""

IDLE_S: Final = 0.05
"""Without a caller, after which everything goes back."""

BACK_OFF_S: Final = 1.0
"""Without prefetched gets, after another process has asked for something under the key."""

MAX_BACK_OFF_S: Final = 60.0
"""The same, where that happens again and again, and no streak was longer than ``MAX_WINDOW``: doubled each time."""

_MAX_KEYS: Final = 64
"""Of which anything is remembered."""


@dataclass(slots=True)
class Window:
    """The prefetched gets of one key.

    Attributes:
        numbers: those that no caller has taken, oldest first.
        arrived: their items, so far.
        streak: items that callers have had, each asked for soon after the other, and after the first of them was had.
        begun: the get that was asked for last when the streak began.
        asked_at: when a caller asked last; seconds of the monotonic clock.
        latest: the get that was asked for last.
        max_limit: gets that may be ahead at most; as many as is good for items of the size of the last one.
        off_until: none is sent before, on the same clock.
        back_off_s: so long none will be sent, when another process asks.
    """

    numbers: deque[int] = field(default_factory=deque)
    arrived: dict[int, Delivery] = field(default_factory=dict)
    streak: int = 0
    begun: int = 0
    asked_at: float = 0.0
    latest: int = 0
    max_limit: int = field(default_factory=lambda: MAX_WINDOW)
    off_until: float = 0.0
    back_off_s: float = field(default_factory=lambda: BACK_OFF_S)

    @property
    def limit(self) -> int:
        """How many gets may be ahead: more, as the streak goes on."""
        return min(self.max_limit, max(WINDOW, self.streak))

    def asked(self, number: int, at: float) -> None:
        """A caller asks; its get has this number."""
        if at - self.asked_at > MAX_GAP_S:
            self.streak = 0
        self.asked_at, self.latest = at, number


class PrefetchWindows:
    """The windows of one queue.  Plain state, to be used under ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.open: dict[bytes, Window] = {}
        """The windows that have gets."""
        self._windows: dict[bytes, Window] = {}
        self._under_way: dict[int, Window] = {}
        """By number, where nothing has arrived yet."""

    def __repr__(self) -> str:
        return f"<PrefetchWindows [{len(self.open)} keys, {len(self._under_way)} gets under way]>"

    # -- callers ------------------------------------------------------------------------------------------------

    def asked(self, key: bytes, number: int, asked_at: float) -> None:
        """A caller's get was sent, because none was prefetched."""
        window = self._windows.get(key)
        if window is not None:
            window.asked(number, asked_at)

    def had(self, key: bytes, number: int) -> bool:
        """A caller has the item of this get; whether gets may be prefetched from now on.

        Needs no lock.
        """
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= _MAX_KEYS:
                self._windows = dict(self.open)
            window = self._windows.setdefault(key, Window())
        if not window.latest or window.asked_at < window.off_until:
            return False
        # Gets that were in flight when a streak began do not count.  Or a caller that asks for several at once, now and
        # then, would have a window filled after each time, which goes back when it has been idle: its items would
        # travel twice, and another client that asks meanwhile would wait for them.
        # tests/_channels/state/test_prefetch_window.py::test_several_gets_at_once_now_and_then_do_not_begin_it
        if not window.streak:
            window.streak, window.begun = 1, window.latest
        elif number > window.begun:
            window.streak += 1
        return window.streak >= MIN_STREAK and not window.numbers

    def large(self, key: bytes, nbytes: int) -> None:
        """An item that came for a caller has memory of its own, so many bytes."""
        window = self._windows.get(key)
        if window is not None:
            _limit(window, nbytes)

    def take(self, key: bytes, asked_at: float) -> tuple[int, Delivery | None] | None:
        """The oldest get, which is a caller's now, and its item if that has arrived; None if there is none."""
        window = self.open.get(key)
        if window is None:
            return None
        number = window.numbers.popleft()
        window.asked(number, asked_at)
        delivery = window.arrived.pop(number, None)
        if delivery is None:
            del self._under_way[number]
        if not window.numbers:
            del self.open[key]
        return number, delivery

    def wanted(self, key: bytes) -> int:
        """How many more gets are to be prefetched now; several at a time."""
        window = self._windows.get(key)
        if window is None or window.streak < MIN_STREAK:
            return 0
        missing = window.limit - len(window.numbers)
        return missing if missing * 2 >= window.limit else 0

    def limit(self, key: bytes) -> int:
        """How many gets may be prefetched."""
        window = self._windows.get(key)
        return WINDOW if window is None else window.limit

    def sent(self, key: bytes, numbers: list[int]) -> None:
        """These gets were prefetched."""
        window = self.open[key] = self._windows.setdefault(key, Window())
        window.numbers.extend(numbers)
        for number in numbers:
            self._under_way[number] = window

    # -- the queue ----------------------------------------------------------------------------------------------

    def arrived(self, number: int, delivery: Delivery) -> bool:
        """An item; False if its get is not prefetched."""
        window = self._under_way.pop(number, None)
        if window is None:
            return False
        window.arrived[number] = delivery
        if delivery[1]:
            _limit(window, delivery[0])
        else:
            window.max_limit = MAX_WINDOW
        return True

    def ended(self, number: int) -> bool:
        """Nothing will come of a get; False if that is not prefetched."""
        window = self._under_way.pop(number, None)
        if window is None:
            return False
        window.numbers.remove(number)
        if not window.numbers:
            self.open = {key: window for key, window in self.open.items() if window.numbers}
        return True

    # -- back ---------------------------------------------------------------------------------------------------

    def is_stale(self, key: bytes, now: float) -> bool:
        """No caller has asked for so long that another process may have been given the items by now."""
        return now - self.open[key].asked_at > IDLE_S

    def stale(self, now: float) -> list[bytes]:
        """Keys of which no caller has asked for so long."""
        return [key for key in self.open if self.is_stale(key, now)]

    def back_off(self, key: bytes, now: float) -> None:
        """Another process has asked for something under this key."""
        window = self._windows.get(key)
        if window is not None:
            if window.streak > MAX_WINDOW:
                window.back_off_s = BACK_OFF_S
            window.off_until = now + window.back_off_s
            window.back_off_s = min(2 * window.back_off_s, MAX_BACK_OFF_S)

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
        """All gets of a key that no caller has taken, and their items, as far as those had arrived."""
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
    window.max_limit = LARGE_WINDOW
