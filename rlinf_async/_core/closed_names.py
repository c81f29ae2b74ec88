"""Names of closed groups and channels, kept at node 0's daemon: a lookup of one fails at once and does not wait."""

from __future__ import annotations

from typing import Final

from rlinf_async.errors import ClosedError

MAX_CLOSED_NAMES: Final = 4096
"""Names that are remembered; of more of them the oldest are forgotten, and waited for like names that never were."""


class ClosedNames:
    """The last names that were closed; a lookup of one raises.

    Args:
        kind: what the names are of: ``"group"``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._names: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        """What had the name is closed."""
        self._names[name] = None
        if len(self._names) > MAX_CLOSED_NAMES:
            del self._names[next(iter(self._names))]

    def discard(self, name: str) -> None:
        """The name is taken again."""
        self._names.pop(name, None)

    def check(self, name: str) -> None:
        """Raises:
        ClosedError: what had the name is closed.
        """
        if name in self._names:
            raise ClosedError(f"{self.kind} '{name}' is closed; a new one of that name is found once it is there")
