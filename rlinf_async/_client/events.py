"""Listener registry of a process: callbacks for daemons' EVENT frames (deaths, lost nodes, workers' output)."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable
from typing import Any, Final

from rlinf_async._core import clock

Listener = Callable[[dict[str, Any]], None]


_MAX_RETURNED: Final = 256


class Events:
    """The listeners of a process, by kind of event: deaths, lost nodes, lines of output, the process's own end.

    Attributes:
        returned: maps the old endpoint of each returned rank to the facts of its return, for later listeners that know
            only the old endpoint.
        in_debugger: ranks of the run that are stopped in the debugger.
    """

    def __init__(self) -> None:
        self.returned: dict[int, dict[str, Any]] = {}
        self.in_debugger: set[int] = set()
        self._resumed_at = -math.inf
        """Time, on ``clock.monotonic()``, at which the last rank left the debugger."""
        self._always: dict[str, list[Listener]] = {}
        self._while_alive: dict[str, dict[int, weakref.WeakMethod[Listener]]] = {}
        self._numbers = itertools.count()

    def on(self, kind: str, listener: Listener) -> None:
        self._always.setdefault(kind, []).append(listener)

    def listen(self, kind: str, listener: Listener) -> None:
        """Call a bound method for every event of a kind, as long as its object is alive."""
        number, listening = next(self._numbers), self._while_alive.setdefault(kind, {})
        # Identify listeners by number: removing one from a list would search the list while other threads add and
        # remove entries.
        listening[number] = weakref.WeakMethod(listener, lambda _: listening.pop(number, None))

    def announce(self, kind: str, facts: dict[str, Any]) -> None:
        if kind == "rank_returned" and facts["entry"] is not None:
            self.returned[facts["was"]] = facts
            if len(self.returned) > _MAX_RETURNED:
                del self.returned[next(iter(self.returned))]
        elif kind == "debugger":
            self._note_stop(facts["endpoint"], stands=bool(facts["where"]))
        for listener in list(self._always.get(kind, ())):
            listener(facts)
        for reference in list(self._while_alive.get(kind, {}).values()):
            if (method := reference()) is not None:
                method(facts)

    def _note_stop(self, endpoint: int, *, stands: bool) -> None:
        if stands:
            self.in_debugger.add(endpoint)
        elif endpoint in self.in_debugger:
            self.in_debugger.discard(endpoint)
            self._resumed_at = clock.monotonic()

    def counts_from(self, since: float) -> float:
        """Return the start of a time limit set at ``since``; it starts again when the last rank leaves the debugger."""
        # A stop of any rank counts, because ranks that wait for it, directly or indirectly, cannot continue either.
        return clock.monotonic() if self.in_debugger else max(since, self._resumed_at)
