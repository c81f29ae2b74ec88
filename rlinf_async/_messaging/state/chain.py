"""Chain of machines along which a payload is passed on: the source sends it to the first, which sends it to the next.

Plain state.  ``RelayPlan`` asks it from which machine another one gets the payload, and tells it what breaks::

    chain.plan([1, 2, 3], now)      source ──► 1 ──► 2 ──► 3
    chain.leave(2)                  source ──► 1 ──► 3             2 is gone; 3 has to begin again
    chain.cut(3, now)               source ──► 1,  source ──► 3    nothing has come from 1 to 3; so again later
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CHAIN_FROM_BYTES: Final = 64 << 20
"""Bytes from which on two or more machines make a chain: half a second of a gigabit line, fifty milliseconds of a fast
one.  Less is sooner with all of them if the source sends it to each."""

DISTRUST_S: Final = 300.0
"""Seconds for which two machines between which nothing has come through are not neighbours again."""

_PATIENCE: Final = 0.2
_MORE_PATIENCE: Final = 0.05
_MOST_PATIENCE: Final = 0.5
"""Parts of the time that receivers have, more with each machine in between.  What is left is for another way."""

_MIN_PIECE_BYTES: Final = 8 << 20
_MAX_PIECE_BYTES: Final = 32 << 20
"""The last machine is behind the first by one piece for each in between, so pieces are small; each costs as much time
as a megabyte or more, so they are not smaller."""


def chain_sizes(nbytes: int) -> list[int]:
    """Sizes in bytes of the pieces in which so many bytes are passed on; about as large as each other."""
    piece = min(max(nbytes // 16, _MIN_PIECE_BYTES), _MAX_PIECE_BYTES)
    return [min(piece, nbytes - start) for start in range(0, nbytes, piece)]


class Chain:
    """The neighbours of one distribution, by number; a machine without one gets the payload from the source itself."""

    def __init__(self) -> None:
        self._sources: dict[int, int] = {}
        self._distrusted: dict[tuple[int, int], float] = {}
        """Moments from which on two machines may be neighbours again."""

    def __repr__(self) -> str:
        return f"<Chain {', '.join(f'{source} -> {node}' for node, source in self._sources.items()) or 'of none'}>"

    def plan(self, nodes: Iterable[int], now: float) -> None:
        """Begins another distribution, to these in this order as far as neighbours reach each other."""
        self._sources.clear()
        self._distrusted = {pair: until for pair, until in self._distrusted.items() if until > now}
        waiting = list(nodes)
        last: int | None = None
        while waiting:
            node = next((node for node in waiting if self._is_trusted(last, node)), waiting[0])
            waiting.remove(node)
            if last is not None and self._is_trusted(last, node):
                self._sources[node] = last
            last = node

    def _is_trusted(self, source: int | None, node: int) -> bool:
        return source is None or (source, node) not in self._distrusted

    def source(self, node: int) -> int | None:
        """The machine that passes it on to this one; None: the source itself."""
        return self._sources.get(node)

    def patience(self, node: int, seconds: float) -> float:
        """Seconds that a machine waits for its source, of those that there are in all.

        Where a way is cut, all those behind it wait.  The first of them is to say so first: it is its way.
        """
        depth = 0
        while node in self._sources:
            node, depth = self._sources[node], depth + 1
        return seconds * min(_PATIENCE + depth * _MORE_PATIENCE, _MOST_PATIENCE)

    def behind(self, node: int) -> list[int]:
        """The machines that lack it and get it through this one, the nearest first."""
        following = {source: node for node, source in self._sources.items()}
        found: list[int] = []
        while node in following:
            node = following[node]
            found.append(node)
        return found

    def landed(self, node: int) -> None:
        """Notes that a machine has all of it and depends on no other; the next one still depends on it."""
        self._sources.pop(node, None)

    def leave(self, node: int) -> list[int]:
        """Takes out a machine that is gone, or begins again by itself.

        Returns those behind it, which begin again; the first of them with its own source.
        """
        behind = self.behind(node)
        source = self._sources.pop(node, None)
        if behind:
            self._sources.pop(behind[0])
            if source is not None and self._is_trusted(source, behind[0]):
                self._sources[behind[0]] = source
        return behind

    def cut(self, node: int, now: float) -> list[int]:
        """Parts a machine from its source, from which nothing comes.

        Returns it and those behind it, which begin again; it gets the payload from the source itself.
        """
        source = self._sources.pop(node, None)
        if source is not None:
            self._distrusted[source, node] = now + DISTRUST_S
        return [node, *self.behind(node)]
