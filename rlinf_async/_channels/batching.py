"""Batches puts and gets for one remote queue into one frame, at the end of the loop's turn.

Batched requests are sent at the end of the loop's turn, or as soon as enough have gathered, so that the daemon works on
them while more requests follow. If no loop is running, nothing is batched::

    batching.may_wait(now)      several were answered together, so their callers will probably send more
    batching.gathers()          requests may be added now; they are sent at the end of this turn
    batching.gets.append(…)
    if batching.is_complete: batching.leave()
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from rlinf_async._channels.request import Put
from rlinf_async._core import clock
from rlinf_async._core.segment import close_fds
from rlinf_async._waits.thread_gate import awaiting_loop

T = TypeVar("T")

MIN_BURST: Final = 4
"""Minimum number of requests answered together that makes more requests in the same turn likely."""

_BURST_WINDOW_S: Final = 200e-6

_BATCH_SIZE: Final = 16
_LARGE_BATCH_SIZE: Final = 4
"""Number of requests at which a batch is sent without waiting for more, so that the daemon works on it while others
follow. A large item has its own frame; several such frames are sent together."""


Large = tuple[Put, bytes | int, Any]


class Batching:
    """The requests to one queue that wait to be sent; thread-safe.

    Attributes:
        puts, gets, large: requests in order.
        taken: ``(number, count)`` for each get, with the number of items taken so far.
    """

    def __init__(
        self,
        unsent: dict[Callable[[], None], None],
        send: Callable[[list[Any], list[Any], list[Any], list[Large]], None],
    ) -> None:
        """Create a batch. ``unsent`` has callbacks to run before the client's loop blocks; ``send`` takes 4 lists."""
        self.puts: deque[Any] = deque()
        self.gets: deque[Any] = deque()
        self.taken: deque[tuple[int, int]] = deque()
        self.large: deque[Large] = deque()
        self._unsent = unsent
        self._send = send
        self._burst_until = 0.0
        self._gathering: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Batching [{len(self.puts)} puts, {len(self.gets)} gets, {len(self.large)} large puts]>"

    @property
    def is_complete(self) -> bool:
        return len(self.puts) >= _BATCH_SIZE or len(self.gets) >= _BATCH_SIZE or len(self.large) >= _LARGE_BATCH_SIZE

    def burst(self, count: int) -> None:
        if count >= MIN_BURST:
            self._burst_until = clock.monotonic() + _BURST_WINDOW_S

    def may_wait(self, now: float) -> bool:
        """True if a request should wait now, because others will probably follow."""
        if not self._burst_until:
            return False
        if now > self._burst_until:
            self._burst_until = 0.0
            return False
        return self.gathers()

    def gathers(self) -> bool:
        """Schedule a flush at the end of the loop's turn. Return False if there is no loop, or if it may block."""
        loop = awaiting_loop()
        if loop is None:
            return False
        if self._gathering is not loop:
            self._gathering = loop
            loop.call_soon(self.flush)
            self._unsent[self.flush] = None
        return True

    def flush(self) -> None:
        self._gathering = None
        self._unsent.pop(self.flush, None)
        self.leave()

    def leave(self) -> None:
        self._send(emptied(self.puts), emptied(self.gets), emptied(self.taken), emptied(self.large))

    def flush_from_thread(self) -> None:
        if self.puts or self.gets or self.large:
            self.leave()

    def drop(self) -> None:
        self.puts.clear()
        for _, _, fds in emptied(self.large):
            close_fds(fds)


def emptied(found: deque[T]) -> list[T]:
    things: list[T] = []
    while found:
        try:
            things.append(found.popleft())
        except IndexError:  # another thread has taken the last request
            break
    return things
