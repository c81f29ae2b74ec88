"""``GivingBack``: ``get`` requests whose items a process is returning to their queues, and sends that must not overtake
these returns.

When the caller has an answer, it may ask another process to get from the same queue; that request takes another path
and may arrive before a return. So answers wait here until the queues have confirmed all earlier returns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable


class GivingBack:
    """The unconfirmed returns of one client, and the sends that wait for them; any thread may call the methods.

    Attributes:
        open: queue and number of each get whose return is unconfirmed. Finalizers add to it, so it has no lock.
        held: sends in order, each with the gets that were open when it was added.
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
        """Stop waiting for a queue that has ended, or for all queues if none is given."""
        for each in self.open.copy():
            if queue is None or each[0] is queue:
                self.open.pop(each, None)
        self._send()

    def enqueue(self, send: Callable[[], None]) -> None:
        """Call ``send`` once all returns that are open now have been confirmed, and after earlier sends."""
        with self._lock:
            self.held.append((self.open.copy(), send))
        self._send()

    def _send(self) -> None:
        # While the first send runs, without the lock, it stays at the head of the deque, so that another thread's later
        # send waits.
        while self.held:
            is_mine = has_begun = False
            try:
                with self._lock:
                    if self._is_sending or not self.held or any(get in self.open for get in self.held[0][0]):
                        return
                    self._is_sending = is_mine = True
                send = self.held[0][1]
                has_begun = True
                send()
            finally:  # also if a signal handler raises between two of these lines
                if is_mine:
                    with self._lock:
                        self._is_sending = False
                        if has_begun:
                            self.held.popleft()
