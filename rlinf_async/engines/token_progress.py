"""``TokenProgress``: when an engine has last given a token, and whether that is too long ago."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from rlinf_async._core import clock


class TokenProgress:
    """Open requests of an engine, and the time since one of them has got a token.

    Attributes:
        open: number of requests that are under way.
    """

    def __init__(self) -> None:
        self.open = 0
        self._pauses = 0
        self._since = 0.0
        self._changed = asyncio.Event()

    @contextlib.contextmanager
    def of_one(self) -> Iterator[Callable[[], None]]:
        """Count a request; the function that is given notes a token."""
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

    def pause(self) -> None:
        """Stop the clock: the engine samples nothing on purpose."""
        self._pauses += 1
        self._changed.set()

    def resume(self) -> None:
        """Start the clock again, after as many calls as of ``pause``."""
        self._pauses = max(0, self._pauses - 1)
        self._restart()

    def _restart(self) -> None:
        self._since = clock.monotonic()
        self._changed.set()

    async def stalled(self, limit_s: float) -> None:
        """Wait until open requests have got no token for so many seconds from now on."""
        self._restart()
        while True:
            self._changed.clear()
            is_owing = self.open > 0 and not self._pauses
            left = self._since + limit_s - clock.monotonic() if is_owing else None
            if left is not None and left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
