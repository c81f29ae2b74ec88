"""What a worker's model stands at, where its weights are applied by its receiver: its version, and who waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf_async.errors import DeadlineExceeded
from rlinf_async.weights.state.versions import Reception
from rlinf_async.weights.waiting.changes import Changes
from rlinf_async.weights.waiting.gate import Reading, ReadingGate


class Applied:
    """The versions of one model in one worker.

    Args:
        patience: seconds that readers have to leave when weights have come.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._reception = Reception()
        self._gate = ReadingGate(lambda: self.version)
        self._changes = Changes()

    @property
    def version(self) -> int:
        return self._reception.version

    @property
    def published(self) -> int:
        return self._reception.published

    def hear(self, version: int | None) -> None:
        """That version exists."""
        if version is not None:
            self._reception.heard(version)
            self._changes.notify()

    async def overwrite(self, write: Callable[[], Any], version: int | None) -> bool:
        """Has the model written while nobody reads it; without a version it is the next one.

        Returns:
            False if the model has that version already, or a later one: it was not written.

        Raises:
            DeadlineExceeded: readers have not left in time.
            Exception: what ``write`` raises.
        """
        async with self._gate.writing(self._patience):
            if version is not None and version <= self.version:
                return False
            write()
            self._reception.applied(self.version + 1 if version is None else version)
        self._changes.notify()
        return True

    def reading(self, timeout: float | None = None) -> Reading:
        return self._gate.reading(timeout)

    async def wait_version(self, version: int, timeout: float | None) -> None:
        await self._wait(lambda: self.version >= version, timeout)

    async def wait_fresh(self, max_lag: int, timeout: float | None) -> None:
        await self._wait(lambda: self.published - self.version <= max_lag, timeout)

    async def _wait(self, condition: Callable[[], bool], timeout: float | None) -> None:
        """
        Raises:
            DeadlineExceeded: the condition has not come true.
        """
        if not await self._changes.wait_until(condition, timeout):
            raise DeadlineExceeded(
                f"after {timeout:g} s the model was at version {self.version}, of {self.published} published"
            )
