"""A listener to a link that records what arrives."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests._support.weight_parts import LinkMessage


class Ear:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.words: list[LinkMessage] = []
        self.end: Exception | None = None
        self._changed = threading.Condition()

    def on_message(self, words: LinkMessage) -> None:
        with self._changed:
            self.words.append(words)
            self._changed.notify_all()

    def on_end(self, error: Exception) -> None:
        with self._changed:
            assert self.end is None, "an end is heard once"
            self.end = error
            self._changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 10)
