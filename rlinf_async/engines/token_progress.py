"""``TokenProgress``: tracks when an engine last produced a token, and detects stalls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from rlinf_async._core import clock

_TO_READ_S: Final = 1.0  # seconds for the tokens that came while this process was stopped


class TokenProgress:
    """The number of an engine's open requests, and the time since any of them received a token.

    Attributes:
        open: number of open requests.
    """

    def __init__(self) -> None:
        self.open = 0
        self._pauses = 0
        self._since = 0.0
        self._changed = asyncio.Event()

    @contextlib.contextmanager
    def of_one(self) -> Iterator[Callable[[], None]]:
        """Context manager: counts one open request; yields a function to call for each of its tokens."""
        if not self.open:
            self._restart()
        self.open += 1
        try:
            yield self._note
        finally:
            self.open -= 1
            self._changed.set()

    def _note(self) -> None:
        self._since = clock.monotonic()

    @property
    def is_paused(self) -> bool:
        """True from ``pause`` to ``resume``."""
        return self._pauses > 0

    def pause(self) -> None:
        """Stop the clock while the engine deliberately samples nothing."""
        self._pauses += 1
        self._changed.set()

    def resume(self) -> None:
        """Restart the clock once every ``pause`` has been undone."""
        self._pauses = max(0, self._pauses - 1)
        self._restart()

    def _restart(self) -> None:
        self._since = clock.monotonic()
        self._changed.set()

    async def stalled(self, limit_s: float) -> None:
        """Wait until open requests have received no token for ``limit_s`` seconds, counted from now at the earliest."""
        self._restart()
        late: float | None = None
        while True:
            self._changed.clear()
            is_owing = self.open > 0 and not self.is_paused
            left = self._since + limit_s - clock.monotonic() if is_owing else None
            if left is not None and left <= 0:
                if late == self._since:
                    return
                # This process may have been stopped for so long: then its tokens have come, and are about to be read.
                late, left = self._since, min(_TO_READ_S, limit_s / 10)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
