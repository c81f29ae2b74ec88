"""Errors of which the user's code has not heard: a run that ends with one is no success."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Unheard:
    """Those of one driver, by a key of what failed.

    A failure and the code that gets its error may come in either order, in different threads: what has been heard
    before it was told is never told.

    Args:
        tell: an operation and its arguments to the daemon, which keeps the account for the launcher.
    """

    def __init__(self, tell: Callable[[str, Any], None]) -> None:
        self._tell = tell
        self._failed: set[str] = set()
        self._heard: set[str] = set()

    def failed(self, key: str, text: str) -> None:
        """Something has failed, and nobody waits for it."""
        if key not in self._heard:
            self._failed.add(key)
            self._tell("failed", {"key": key, "text": text})

    def heard(self, key: str) -> None:
        """The user's code has got the error."""
        if key in self._failed:
            self._failed.discard(key)
            self._tell("heard", {"key": key})
        else:
            self._heard.add(key)
