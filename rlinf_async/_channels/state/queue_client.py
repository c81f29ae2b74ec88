"""One process that uses a channel's queue."""

from __future__ import annotations

from rlinf_async._channels.state.key_queue import Get, Item


class QueueClient:
    """One process, as the queue knows it."""

    __slots__ = ("asleep", "cancelled", "early", "expected", "gets", "puts")

    def __init__(self) -> None:
        self.expected = 1
        self.early: dict[int, Item | Get] = {}
        """What came before its turn."""
        self.cancelled: set[int] = set()
        """Numbers that were given up before they came."""
        self.puts: dict[int, Item] = {}
        """Its items that wait for room."""
        self.gets: dict[int, Get] = {}
        """Its gets that wait, and those whose items it has not taken."""
        self.asleep: dict[int, Get] = {}
        """Gets that it had sent ahead and forfeited while they waited: some caller may yet count on them.  And those
        that it has sent under their keys since then."""
