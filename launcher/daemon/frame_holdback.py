"""Reordering guard of a node link, ``Holdback``: holds a source's frames until an earlier one's body has come in."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class Holdback:
    """Keeps the frames of a source in order while the body of one of them is still on its way.

    A frame whose body comes in pieces on another stream must not be overtaken by what its source sent after it, and
    nothing of another source waits for it.
    """

    def __init__(self) -> None:
        self._held: dict[Hashable, list[tuple[int | None, Any]]] = {}
        self._arrived: set[int] = set()

    def push(self, source: Hashable, frame: Any, transfer: int | None = None) -> list[Any]:
        """The frames of this source that may pass now, in order."""
        held = self._held.get(source)
        if held is None:
            if transfer is None:
                return [frame]
            if transfer in self._arrived:
                self._arrived.discard(transfer)
                return [frame]
            self._held[source] = [(transfer, frame)]
            return []
        held.append((transfer, frame))
        return []

    def arrived(self, transfer: int) -> list[Any]:
        """A body is complete: the frames that it lets pass."""
        self._arrived.add(transfer)
        for source, held in self._held.items():
            if any(awaited == transfer for awaited, _ in held):
                return self._release(source, held)
        return []

    def _release(self, source: Hashable, held: list[tuple[int | None, Any]]) -> list[Any]:
        passed: list[Any] = []
        while held and (held[0][0] is None or held[0][0] in self._arrived):
            transfer, frame = held.pop(0)
            if transfer is not None:
                self._arrived.discard(transfer)
            passed.append(frame)
        if not held:
            del self._held[source]
        return passed

    def drop(self) -> list[Any]:
        """Forgets everything; what was held."""
        frames = [frame for held in self._held.values() for _, frame in held]
        self._held.clear()
        self._arrived.clear()
        return frames
