"""Listener registry of a process: callbacks for daemons' EVENT frames (deaths, lost nodes, workers' output)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

Listener = Callable[[dict[str, Any]], None]
"""Called with the facts of the event, where frames are handled."""


class Events:
    """The listeners of a process, by what they listen to: deaths, lost nodes, lines of output, its own end."""

    def __init__(self) -> None:
        self._always: dict[str, list[Listener]] = {}
        self._while_alive: dict[str, list[weakref.WeakMethod[Listener]]] = {}

    def on(self, what: str, listener: Listener) -> None:
        """Calls it for every event of a kind, as long as the process lives."""
        self._always.setdefault(what, []).append(listener)

    def listen(self, what: str, listener: Listener) -> None:
        """Calls a bound method for every event of a kind, as long as its object lives."""
        self._while_alive.setdefault(what, []).append(weakref.WeakMethod(listener))

    def announce(self, what: str, facts: dict[str, Any]) -> None:
        for listener in list(self._always.get(what, ())):
            listener(facts)
        listening = self._while_alive.get(what, [])
        for reference in list(listening):
            method = reference()
            if method is None:
                listening.remove(reference)
            else:
                method(facts)
