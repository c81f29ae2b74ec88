"""``Holdback``: keeps a node link's frames in order by holding back frames that follow an incomplete body."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

_Line = tuple[Hashable, Hashable]


class Holdback:
    """Frames held back per source while the body of an earlier frame is in transfer.

    A frame's body arrives in pieces on another stream.  Later frames from the same source must not overtake it; frames
    from other sources may.  The replies to one call form a *branch*: they keep their own order and follow frames that
    the source sent before them, but hold up no other frames; otherwise a large result would delay every later call.

    Example:
        holdback.push(7, reply, transfer=1, branch=("caller", 3))    # []: its body is incomplete
        holdback.push(7, other_reply, branch=("caller", 4))          # [other_reply]
        holdback.push(7, ended, is_last=True)                        # []: passes after all frames of its source
        holdback.arrived(1)                                          # [reply, ended]
    """

    def __init__(self) -> None:
        self._held: dict[_Line, list[tuple[int | None, Any]]] = {}
        self._last: dict[Hashable, list[Any]] = {}  # maps each source to final frames, released after its others
        self._arrived: set[int] = set()

    @property
    def is_empty(self) -> bool:
        """True if no frame is held back, so that a frame without a body may pass."""
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
        """Add a frame; return the source's frames that may now pass, in order."""
        if not self._held:  # usually nothing is held back
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
        """Mark a body complete; return the frames that may now pass."""
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
        """Clear the state; return all frames that were held back."""
        frames = [frame for held in self._held.values() for _, frame in held]
        frames += [frame for last in self._last.values() for frame in last]
        self._held.clear()
        self._last.clear()
        self._arrived.clear()
        return frames
