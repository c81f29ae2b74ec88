"""Chain of machines that forward a payload: the source sends it to the first, which sends it to the next, and so on.

Plain state: ``RelayPlan`` asks the chain which machine sends to each machine, and reports failures to it::

    chain.plan([1, 2, 3], now)      source ──► 1 ──► 2 ──► 3
    chain.leave(2)                  source ──► 1 ──► 3             2 has failed; 3 must start again
    chain.cut(3, now)               source ──► 1,  source ──► 3    1 sent nothing to 3: keep them apart for a while
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CHAIN_FROM_BYTES: Final = 64 << 20
"""Payload size from which two or more machines form a chain. Sending that much takes 0.5 s on a gigabit line and 50 ms
on a fast line. A smaller payload arrives sooner if the source sends it to each machine directly."""

DISTRUST_S: Final = 300.0
"""Seconds for which two machines are not made neighbours again after a transfer between them has failed."""

_PATIENCE: Final = 0.2
_MORE_PATIENCE: Final = 0.05
_MOST_PATIENCE: Final = 0.5
"""Fractions of the receivers' time limit that a machine waits for its neighbour: minimum, increment for each machine
in between, and maximum. The rest of the time is left for a second attempt."""

_MIN_PIECE_BYTES: Final = 8 << 20
_MAX_PIECE_BYTES: Final = 32 << 20
"""Bounds on the size of a piece. Each machine in between delays the last piece by the transfer time of one piece, hence
the maximum. A piece also has a fixed cost, comparable to sending a megabyte or more, hence the minimum."""


def chain_sizes(nbytes: int) -> list[int]:
    """Return the sizes in bytes of a payload's pieces in a chain; all but the last are equal."""
    piece = min(max(nbytes // 16, _MIN_PIECE_BYTES), _MAX_PIECE_BYTES)
    return [min(piece, nbytes - start) for start in range(0, nbytes, piece)]


class Chain:
    """The neighbours in one distribution, by machine number. The source sends to machines without a neighbour."""

    def __init__(self) -> None:
        self._sources: dict[int, int] = {}
        self._distrusted: dict[tuple[int, int], float] = {}

    def __repr__(self) -> str:
        return f"<Chain {', '.join(f'{source} -> {node}' for node, source in self._sources.items()) or 'of none'}>"

    def plan(self, nodes: Iterable[int], now: float) -> None:
        """Begin a new distribution to these machines, in this order as far as neighbours can reach each other."""
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
        """Return the machine that forwards the payload to this one; None if the source sends it."""
        return self._sources.get(node)

    def patience(self, node: int, seconds: float) -> float:
        """Return the number of seconds that a machine waits for its neighbour.

        If a connection breaks, all machines behind it wait. The nearest machine has the least patience, so it reports
        first, and its report names the broken connection.
        """
        depth = 0
        while node in self._sources:
            node, depth = self._sources[node], depth + 1
        return seconds * min(_PATIENCE + depth * _MORE_PATIENCE, _MOST_PATIENCE)

    def behind(self, node: int) -> list[int]:
        """Return the machines that get the payload through this one and still lack it, nearest first."""
        following = {source: node for node, source in self._sources.items()}
        found: list[int] = []
        while node in following:
            node = following[node]
            found.append(node)
        return found

    def landed(self, node: int) -> None:
        self._sources.pop(node, None)

    def leave(self, node: int) -> list[int]:
        """Remove a machine that has failed, or that restarts on its own.

        Return the machines behind it, which restart; the first of them now receives from this machine's source.
        """
        behind = self.behind(node)
        source = self._sources.pop(node, None)
        if behind:
            self._sources.pop(behind[0])
            if source is not None and self._is_trusted(source, behind[0]):
                self._sources[behind[0]] = source
        return behind

    def cut(self, node: int, now: float) -> list[int]:
        """Separate a machine from a neighbour that sends nothing.

        Return that machine and the machines behind it, which restart; the source itself serves it from now on.
        """
        source = self._sources.pop(node, None)
        if source is not None:
            self._distrusted[source, node] = now + DISTRUST_S
        return [node, *self.behind(node)]
