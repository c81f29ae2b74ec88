"""``AsyncRouteWork``: a single ``Work`` for all sends or receives of one ``send_to`` or ``recv_from`` call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from rlinf_async.errors import ClosedError
from rlinf_async.work import Returnable, Whole, Work


class AsyncRouteWork(Returnable[Any], Whole[Any]):
    """The result of ``send_to`` and ``recv_from``: done once all parts are done, failed once any part has failed.

    ``timeout`` covers all parts together. The waiter's thread merges their results. If the waiter is cancelled before
    the merge, received messages return to their streams.
    """

    def __init__(self, what: str, timeout: float | None = None) -> None:
        super().__init__()
        self._what = what
        self._limit(timeout)
        self._parts: Sequence[Work[Any]] = ()
        self._missing = 0
        self._finalize: Callable[[list[Any]], Any] | None = None
        self._finalizing = threading.Lock()

    def _describe(self) -> str:
        waiting = self._open_parts()
        return f"{self._what}: {waiting[0]._describe()}" if waiting else self._what

    def _open_parts(self) -> Sequence[Work[Any]]:
        return [part for part in self._parts if not part._done]

    def wait_for(self, size: Work[int]) -> None:
        """Wait first for a part whose result determines the other parts."""
        self._share_time((size,))
        self._parts = (size,)
        # Fail immediately, because another operation that waits for the same group may have a longer deadline.
        size._follow(lambda: None if size._error is None else self.fail(size._error))

    def _share_time(self, parts: Sequence[Work[Any]]) -> None:
        if self._timeout is not None:
            for part in parts:
                part._timeout, part._since = self._timeout, self._since

    def begin(self, starting: Iterable[Work[Any]], finalize: Callable[[list[Any]], Any] | None = None) -> None:
        """Wait for these parts. ``finalize``, called once, turns their results into the work's own (default: None)."""
        self._parts = parts = list[Work[Any]]()
        try:
            parts.extend(starting)
        except BaseException:  # a part cannot be started
            self._abandon_parts()
            raise
        self._share_time(parts)
        self._finalize = finalize
        self._missing = len(parts)
        if self._done:  # the work has been abandoned
            self._abandon_parts()
        if not parts:
            self._settle()
        for part in parts:
            part._follow(self._follow_part(part))

    def fail(self, error: BaseException) -> None:
        self._settle(error=error)

    def _follow_part(self, part: Work[Any]) -> Callable[[], None]:
        def ended() -> None:
            if part._error is not None:
                if self._settle(error=part._error):
                    self._abandon_parts()
                return
            with self._lock:
                self._missing -= 1
                last = self._missing == 0
            if last:
                self._settle()

        return ended

    def _abandon_parts(self) -> None:
        for part in self._parts:
            part._lose_interest()

    def _abandon(self) -> None:
        self.fail(ClosedError(f"{self._what} was withdrawn: nobody waited for it any more"))
        self._abandon_parts()

    def _return(self) -> None:
        with self._finalizing:
            if self._interested or not self._done or self._error is not None or self._finalize is None:
                return
            self._finalize = None
            self._error = ClosedError(f"{self._what} was cancelled, and what had arrived went back")
        self._abandon_parts()

    def _result(self) -> Any:
        with self._finalizing:
            if self._finalize is not None and self._error is None:
                finalize, self._finalize = self._finalize, None
                try:
                    self._value = finalize([part._result() for part in self._parts])
                except BaseException as error:
                    self._error = error
                self._parts = ()
        return super()._result()

    def then(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{self._what}: then() would run merge_fn in the framework's thread: await it")
