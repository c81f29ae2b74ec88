"""Reordering guard of a node link, ``Holdback``: holds a source's frames until an earlier one's body has come in."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

_Line = tuple[Hashable, Hashable]


class Holdback:
    """Keeps the frames of a source in order while the body of one of them is still on its way.

    A frame whose body comes in pieces on another stream must not be overtaken by what its source sent after it, and
    nothing of another source waits for it.  The answers to one call are a *branch*: they keep their order among each
    other and come after what the source had sent before, but nothing else waits for their bodies, or a large result
    would hold up every later call.

    Example:
        holdback.push(7, reply, transfer=1, branch=("caller", 3))    # []: its body is still on its way
        holdback.push(7, other_reply, branch=("caller", 4))          # [other_reply]
        holdback.push(7, ended, is_last=True)                        # []: after everything of this source
        holdback.arrived(1)                                          # [reply, ended]
    """

    def __init__(self) -> None:
        self._held: dict[_Line, list[tuple[int | None, Any]]] = {}
        self._last: dict[Hashable, list[Any]] = {}
        """By source, what comes after everything else of it."""
        self._arrived: set[int] = set()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits for a body: then a frame without one passes."""
        return not self._held

    def push(
        self,
        source: Hashable,
        frame: Any,
        transfer: int | None = None,
        branch: Hashable = None,
        *,
        is_last: bool = False,
    ) -> list[Any]:
        """The frames of this source that may pass now, in order."""
        if not self._held:  # nearly always
            if transfer is None:
                return [frame]
        elif is_last and self._holds(source):
            self._last.setdefault(source, []).append(frame)
            return []
        line: _Line = (source, branch)
        if line not in self._held and (source, None) in self._held:
            line = (source, None)
        held = self._held.get(line)
        if held is not None:
            held.append((transfer, frame))
            return []
        if transfer is None:
            return [frame]
        if transfer in self._arrived:
            self._arrived.discard(transfer)
            return [frame]
        self._held[line] = [(transfer, frame)]
        return []

    def arrived(self, transfer: int) -> list[Any]:
        """A body is complete: the frames that it lets pass."""
        self._arrived.add(transfer)
        for line, held in self._held.items():
            if any(awaited == transfer for awaited, _ in held):
                return self._release(line, held)
        return []

    def _release(self, line: _Line, held: list[tuple[int | None, Any]]) -> list[Any]:
        passed: list[Any] = []
        while held and (held[0][0] is None or held[0][0] in self._arrived):
            transfer, frame = held.pop(0)
            if transfer is not None:
                self._arrived.discard(transfer)
            passed.append(frame)
        if not held:
            del self._held[line]
            if not self._holds(line[0]):
                passed += self._last.pop(line[0], [])
        return passed

    def _holds(self, source: Hashable) -> bool:
        return any(origin == source for origin, _ in self._held)

    def drop(self) -> list[Any]:
        """Forget everything; what was held."""
        frames = [frame for held in self._held.values() for _, frame in held]
        frames += [frame for last in self._last.values() for frame in last]
        self._held.clear()
        self._last.clear()
        self._arrived.clear()
        return frames
