"""``GivingBack``: gets whose items a process has let go of, and sends that must not overtake the return of these items.

A caller that has an answer may have another process get from the same queue, whose request takes another way and may
come first.  So answers wait here until the queues have confirmed what was given back before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable


class GivingBack:
    """The gets of one client that are given back, and the sends that wait for their queues; from any thread.

    Attributes:
        open: queues with the numbers of gets that they have not confirmed.  Finalizers add to it, so without a lock.
        held: sends in order, each with the gets that were open before it.
    """

    def __init__(self) -> None:
        self.open: dict[tuple[Hashable, int], None] = {}
        self.held: deque[tuple[dict[tuple[Hashable, int], None], Callable[[], None]]] = deque()
        self._lock = threading.Lock()
        self._is_sending = False

    def __repr__(self) -> str:
        return f"<GivingBack [{len(self.open)} gets, {len(self.held)} sends wait]>"

    def confirmed(self, queue: Hashable, number: int) -> None:
        self.open.pop((queue, number), None)
        self._send()

    def forget(self, queue: Hashable = None) -> None:
        """Wait no more for a queue that has ended, by default for none."""
        for each in self.open.copy():
            if queue is None or each[0] is queue:
                self.open.pop(each, None)
        self._send()

    def hold(self, send: Callable[[], None]) -> None:
        """Send behind everything that is open and held."""
        with self._lock:
            self.held.append((self.open.copy(), send))
        self._send()

    def _send(self) -> None:
        # The first one stays in its place while it is sent, without the lock: a later one of another thread waits.
        while self.held:
            with self._lock:
                if self._is_sending or not self.held or any(get in self.open for get in self.held[0][0]):
                    return
                self._is_sending = True
            try:
                self.held[0][1]()
            finally:
                with self._lock:
                    self.held.popleft()
                    self._is_sending = False
