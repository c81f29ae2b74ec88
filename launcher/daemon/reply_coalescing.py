"""Coalescing of a group call's replies, so that the caller wakes up once instead of once per rank."""

from __future__ import annotations

from typing import Any, Final

from rlinf_async._core.frames import OK

MAX_DELAY_S: Final = 0.001  # limit for how long a reply waits for other ranks' replies

Answer = tuple[Any, list[int]]  # a REPLY frame and its descriptors


class ReplyCoalescing:
    """Group calls whose replies are held back; plain state without IO.

    Only results are held back; a call's first failure, like its last reply, releases all of them.

    Example:
        coalescing.expect(source, call, 2)
        coalescing.answer(first, [])       # []: the other reply is still missing
        coalescing.answer(second, [])      # [first, second]
    """

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], tuple[int, list[Answer]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def expect(self, source: int, call: int, count: int) -> None:
        """Hold back the replies to a call that went to ``count`` workers of this node."""
        self._open[source, call] = (count, [])

    def answer(self, frame: Any, fds: list[int]) -> list[Answer]:
        """Add a reply; return the replies to deliver now, in order of arrival."""
        key = (frame[3], frame[4])
        entry = self._open.get(key)
        if entry is None:
            return [(frame, fds)]
        count, waiting = entry
        waiting.append((frame, fds))
        if frame[6] != OK or count == len(waiting):
            del self._open[key]
            return waiting
        return []

    def skip(self, source: int, call: int) -> list[Answer]:
        """Stop expecting a rank that answered on a direct socket; return the replies to deliver now."""
        entry = self._open.get((source, call))
        if entry is None:
            return []
        count, waiting = entry
        if count - 1 > len(waiting):
            self._open[source, call] = (count - 1, waiting)
            return []
        del self._open[source, call]
        return waiting

    def release(self) -> list[Answer]:
        """Return all held-back replies; their calls' later replies pass immediately."""
        late: list[Answer] = []
        for key in [key for key, (_, waiting) in self._open.items() if waiting]:
            late += self._open.pop(key)[1]
        return late

    def forget(self, source: int, call: int) -> list[Answer]:
        """Stop holding back a call's replies because one of its ranks is dead; return them."""
        entry = self._open.pop((source, call), None)
        return entry[1] if entry is not None else []

    def drop(self, source: int) -> list[Answer]:
        calls = [key for key in self._open if key[0] == source]
        return [answer for key in calls for answer in self._open.pop(key)[1]]
