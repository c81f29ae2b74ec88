"""Health of a link to a peer: whether it is worth another try."""

from __future__ import annotations

from typing import Final

_FAILURES: Final = 3
"""Messages that did not come through, and none that did, after which a peer is sent none that way."""


class LinkHealth:
    """How a way has done so far.

    Attributes:
        is_proven: a message has come through.
    """

    __slots__ = ("_failures", "is_proven")

    def __init__(self) -> None:
        self.is_proven = False
        self._failures = 0

    @property
    def is_good(self) -> bool:
        return self.is_proven or self._failures < _FAILURES

    def fail(self) -> bool:
        """A message did not come through; whether that was the end of it."""
        self._failures += 1
        return not self.is_proven and self._failures == _FAILURES
