"""``ChannelItems``: a loop over a channel's items, which it requests in batches and takes one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from rlinf_async._channels.request import Get
from rlinf_async._waits.thread_gate import may_wait
from rlinf_async.errors import EndOfChannel

WINDOW: Final = 16
"""Number of items per request, for a loop that is the only reader."""


class ChannelItems:
    """The items of one key until the channel is closed and empty, for a single ``async for`` or ``for`` loop.

    An item belongs to the loop once its iteration begins. Later items still belong to the channel, and return to their
    places when the loop drops this object or its process dies.
    """

    def __init__(self, ask: Callable[[ChannelItems], Get[None]], channel: str) -> None:
        """Create a loop; ``ask`` starts a get, whose items the loop takes one by one."""
        self._ask = ask
        self._channel = channel
        self._current: Get[None] | None = None
        self._ahead: Get[None] | None = None

    def __repr__(self) -> str:
        left = 0 if self._current is None else self._current.left
        return f"<Items of channel '{self._channel}' [{left} at hand]>"

    # -- the loop -----------------------------------------------------------------------------------------------

    def __aiter__(self) -> ChannelItems:
        return self

    async def __anext__(self) -> Any:
        while True:
            due = self._due()
            if due is not None:
                try:
                    # Yield to other tasks, even if items arrive faster than the loop takes them.
                    await (asyncio.sleep(0) if due.done() else due)
                    self._arrived(due)
                except EndOfChannel:
                    raise StopAsyncIteration from None
                except BaseException:
                    self._give_up(due)
                    raise
            found = self._take()
            if found:
                return found[0]

    def __iter__(self) -> ChannelItems:
        if not may_wait():
            raise TypeError(f"channel '{self._channel}': write `async for item in channel` in a coroutine, not `for`")
        return self

    def __next__(self) -> Any:
        while True:
            due = self._due()
            if due is not None:
                try:
                    due.wait()
                    self._arrived(due)
                except EndOfChannel:
                    raise StopIteration from None
                except BaseException:
                    self._give_up(due)
                    raise
            found = self._take()
            if found:
                return found[0]

    def _due(self) -> Get[None] | None:
        if self._current is not None and self._current.left:
            return None
        self._current = None
        if self._ahead is None:
            self._ahead = self._ask(self)
        return self._ahead

    def _arrived(self, due: Get[None]) -> None:
        self._ahead = None
        due._result()
        self._current = due

    def _take(self) -> list[Any]:
        """Return the next item in a list; an empty list if all items went back because of other consumers."""
        current = self._current
        assert current is not None
        found = current.take_next()
        # Request more only if one answer brought several items; otherwise items are scarce, and other consumers may
        # need them.
        if self._ahead is None and 0 < current.left * 2 <= current.brought:
            self._ahead = self._ask(self)
        return found

    # -- unread items -------------------------------------------------------------------------------------------

    def _give_up(self, due: Get[None]) -> None:
        # Withdraw the request here, because the error's traceback refers to it as long as the error is handled. The
        # next wait starts another one. tests/channel/test_leases.py::
        # test_who_handles_the_end_of_a_wait_finds_the_items_of_the_loop
        self._ahead = None
        due._lose_interest()

    def __del__(self) -> None:
        # Return unread items here, because the finalizers of the gets would run too late. The thread that has just
        # delivered an item may still refer to its get, so this thread's next request would overtake the returned items.
        # tests/_channels/test_remote_queue.py::
        # test_a_loop_that_is_left_gives_back_before_the_next_request_leaves
        for get in (self._current, self._ahead):
            if get is not None and get.destination is not None and (get.left or not get.done()):
                get.destination.withdraw_later(get)
