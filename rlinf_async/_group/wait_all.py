"""Waits for several calls at once: returns the results in order; at the first failure, cancels the other calls."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from rlinf_async._core.failures import add_note
from rlinf_async._core.root_cause import summary_of
from rlinf_async.errors import ClosedError
from rlinf_async.work import Returnable, Whole, Work, blocking


def wait_all(*works: Work[Any]) -> Any:
    """Return the results of all handles (or other works) in order; in a coroutine, a ``Work`` that resolves to them.

    The first failure ends the wait: the other calls are cancelled and the failure is raised, with further failures in
    its notes. So any handle's failure is raised immediately, whereas ``env.wait(); actor.wait()`` raises a failure of
    the second call only after the first call is done. A cancelled or interrupted wait also cancels the calls.

    Example:
        experience, steps, losses = wait_all(env.interact(), rollout.generate(), actor.train())

    Raises:
        TypeError: an argument is neither a handle nor a ``Work``.
        Exception: the first failure.
    """
    for place, work in enumerate(works):
        if not isinstance(work, Work):
            fix = "write wait_all(*handles)" if isinstance(work, list | tuple) else "pass what calls return"
            raise TypeError(
                f"wait_all() takes handles, and got {work!r} ({type(work).__name__}) in place {place}: {fix}"
            )
        work._check_process()
    every = _All(works)
    every.begin()
    return blocking(every)


class _All(Returnable[list[Any]], Whole[list[Any]]):
    _kind = "calls"

    def __init__(self, works: Sequence[Work[Any]]) -> None:
        super().__init__()
        self._works = works
        self._timeout = next((work._timeout for work in works if work._timeout is not None), None)
        self._callbacks: list[Any] = []
        self._open = set(range(len(works)))
        self._first: int | None = None
        # Works cancelled because of the first failure; their cancellation is not a separate failure.
        self._cancelled_others: set[int] = set()
        self._outcome: tuple[list[Any] | None, Exception | None] | None = None

    def begin(self) -> None:
        for place, work in enumerate(self._works):
            self._callbacks.append(functools.partial(self._on_done, place))
            work._report_to(self, self._callbacks[-1])
        if not self._works:
            self._settle()

    def _describe(self) -> str:
        return f"all of {len(self._works)} works: {fold(work._describe() for work in self._open_parts())}"

    def _whom(self) -> str:
        return fold(dict.fromkeys(filter(None, (work._whom() for work in self._open_parts()))))

    def _user_loop(self) -> asyncio.AbstractEventLoop | None:
        return next((loop for work in self._open_parts() if (loop := work._user_loop()) is not None), None)

    def _open_parts(self) -> list[Work[Any]]:
        return [self._works[place] for place in sorted(self._open)]

    # -- on any thread where a work ends ------------------------------------------------------------------------

    def _on_done(self, place: int) -> None:
        with self._lock:
            if self._done or place not in self._open:
                return
            self._open.discard(place)
            is_first = self._first is None and self._works[place]._has_failed()
            if is_first:
                self._first = place
                self._cancelled_others = set(self._open)
        # Cancel without the lock, because a cancelled work may end immediately and call this method again.
        if is_first:
            self._cancel_others()
        if not self._open:
            self._settle()

    def _cancel_others(self) -> None:
        for place in sorted(self._cancelled_others):
            if not self._works[place]._cancel_after_failure():
                with self._lock:
                    self._open.discard(place)  # the work cannot be cancelled, so do not wait for it

    def _abandon(self) -> None:
        """Cancel the works, because the wait itself was cancelled."""
        # Settle first, because the cancellations that follow must not count as failures.
        self._settle(error=ClosedError(f"the wait for {self._describe()} was given up"))
        for work, callback in zip(self._works, self._callbacks, strict=False):
            work._forget_waiter(callback)
            if work.done():
                work._left()
            work._lose_interest()

    def _return(self) -> None:
        with self._lock:
            if self._interested or not self._done or self._error is not None or self._outcome is not None:
                return
            self._error = ClosedError(f"the wait for {self._describe()} was given up, and what had arrived went back")
        for work in self._works:
            work._left()
            work._lose_interest()

    # -- on a waiter's thread -------------------------------------------------------------------------------------

    def _result(self) -> list[Any]:
        if self._error is not None:
            return super()._result()
        if self._outcome is None:
            with self._lock:
                if self._outcome is None:
                    self._outcome = self._collect()
        values, error = self._outcome
        if error is not None:
            raise error.with_traceback(None)
        assert values is not None
        return values

    def _collect(self) -> tuple[list[Any] | None, Exception | None]:
        values: list[Any] = []
        failed: dict[int, Exception] = {}
        for place, work in enumerate(self._works):
            if not work._done:
                continue
            try:
                values.append(work._result())
            except Exception as error:
                if not (place in self._cancelled_others and isinstance(error, ClosedError)):
                    failed[place] = error
        if not failed:
            return values, None
        first = next(iter(failed)) if self._first is None else self._first
        raised = failed.pop(first)
        others = {id(error): (self._works[place], error) for place, error in failed.items() if error is not raised}
        if others:
            lines = [f"    {work._describe()}: {summary_of(error)}" for work, error in others.values()]
            add_note(raised, "\n".join(["other failures of the same wait_all():", *lines]))
        return None, raised


def fold(names: Iterable[str], most: int = 8) -> str:
    """Return ``"a, b, c"``, ending in ``"and 12 more"`` if there are too many."""
    listed: Sequence[str] = list(names)
    if len(listed) <= most:
        return ", ".join(listed)
    return ", ".join(listed[:most]) + f" and {len(listed) - most} more"
