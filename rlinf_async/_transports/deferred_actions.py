"""``DeferredActions``: a lock with a list of callbacks, which run in order once the lock is released."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class DeferredActions:
    """A lock, and what was decided under it: done in that order, one at a time, by whichever thread comes first.

    So nothing foreign is called under the lock, and what is told to others is told in the order of the decisions::

        with deferred.locked():
            self.state = ...
            deferred.add(lambda: post(facts))
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._todo: list[Callable[[], object]] = []
        self._is_acting = False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock; what was added is done at the end, or by a thread that is at it, also after an error."""
        try:
            with self._lock:
                yield
        finally:
            self._act()

    def add(self, do: Callable[[], object]) -> None:
        """While locked only.  ``do`` does not raise."""
        self._todo.append(do)

    def _act(self) -> None:
        failure: BaseException | None = None
        while todo := self._take():
            for do in todo:
                try:
                    do()
                except BaseException as error:  # of a signal's handler: the peer still waits for what comes behind
                    failure = failure or error
            self._is_acting = False
        if failure is not None:
            raise failure

    def _take(self) -> list[Callable[[], object]]:
        with self._lock:
            if self._is_acting:
                return []
            todo, self._todo = self._todo, []
            self._is_acting = bool(todo)
            return todo
