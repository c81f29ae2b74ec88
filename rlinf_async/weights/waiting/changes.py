"""A condition that others wait for: in any loop, with a deadline, without polling."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from rlinf_async._core import clock
from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._waits import slow_waits
from rlinf_async.errors import DeadlineExceeded
from rlinf_async.work import Work


class Changes:
    """Says that something has changed, from any thread, to whoever waits for a condition that may have come true.

    Args:
        model: the name of the weights, for reports of the run.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._awaited: list[str] = []
        """For what there are waits, in words."""
        self._next = _Change(model, self._awaited)

    def notify(self) -> None:
        """Everybody looks again."""
        with self._lock:
            current, self._next = self._next, _Change(self._model, self._awaited)
        current._settle()

    async def wait_until(self, condition: Callable[[], bool], timeout: float | None = None, what: str = "") -> bool:
        """Whether the condition has come true within ``timeout`` seconds; asked after every change.

        Args:
            what: it is, in words.
        """
        begun = clock.monotonic()
        if what:
            self._awaited.append(what)
        try:
            while True:
                with self._lock:
                    change = self._next
                if condition():
                    return True
                if (remaining := clock.rest(timeout, begun)) == 0:
                    return False
                with contextlib.suppress(DeadlineExceeded):
                    await change.async_wait(remaining)
        finally:
            if what:
                self._awaited.remove(what)


class _Change(Work[None]):
    """The next change."""

    _kind = "weights"

    def __init__(self, model: str, awaited: Sequence[str]) -> None:
        super().__init__()
        self._model = model
        self._awaited = awaited

    def _describe(self) -> str:
        return ", ".join(dict.fromkeys(self._awaited)) or f"news of the weights '{self._model}'"

    def _needs(self) -> slow_waits.Needs:
        return [Target(TargetKind.WEIGHTS, name=self._model)], True
