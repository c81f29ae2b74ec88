"""Tracks errors of calls that no code awaits: logs them after a second, reports them; with ``fail_fast``, ends waits.

A call's error may arrive long before the script awaits the call, or the script may never await it because it is blocked
in another wait: ``env.wait(); rollout.wait(); actor.wait()`` blocks in the first wait even if the actor has failed::

    arrived ── RLINF_UNOBSERVED_ERROR_S ──► logged with its remote traceback; with ``fail_fast`` it ends plain waits
       │                                    lines(): warnings about long waits, Ctrl-C
       └── ReportError ──► daemon           the run's exit code is not 0 ...
    observed ── WithdrawError ──► daemon    ... unless the script gets the error, of this call or of one that shares it

Several calls may share an error: a rank's death, the loss of a node, a constructor's error. These errors have a common
``cause``, and an error caught once is not reported for the other calls.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._core import clock, operations
from rlinf_async._core.failure_counts import FailureCounts
from rlinf_async._core.operations import Operation
from rlinf_async._core.own_logger import own_logger

logger = own_logger(__name__)

# Maximum number of errors kept per client; older errors have already been logged and counted by the launcher.
MAX_ERRORS: Final = 1000

# Maximum number of observed causes that are remembered, because further errors with these causes may still arrive.
MAX_OBSERVED: Final = 1000

MAX_LINES: Final = 16

_numbers = itertools.count(1)


@dataclass(eq=False)
class UnobservedError:
    """An error of a call or rank that has arrived here but has not been raised in the script yet.

    Attributes:
        cause: identity shared by the errors of several calls.
        of: name of the call or rank: ``"actor.train()"``.
        text: one line with the call, its ranks and the error.
        details: the remote traceback and its origin.
        make: creates the exception; None for an error without a call, which ends no wait.
        awaited: true while a wait that will raise the error is in progress.
        is_due: true once older than ``RLINF_UNOBSERVED_ERROR_S`` and logged.
    """

    cause: str
    of: str
    text: str
    details: str = ""
    make: Callable[[], BaseException] | None = None
    awaited: bool = False
    is_due: bool = False
    since: float = field(default_factory=lambda: clock.monotonic())

    def make_cause(self) -> BaseException | None:
        """Return the exception for the user's code; None if the error belongs to no call."""
        return self.make() if self.make is not None else None

    @property
    def key(self) -> str:
        return f"{self.cause} of {self.of}"


class UnobservedErrors:
    """The unobserved errors of one client.

    An error and its observation may arrive in either order, from different threads; an error whose cause has already
    been observed is never reported.

    Args:
        send_operation: sends an operation to the daemon, which counts the errors for the launcher; None in a worker,
            whose errors do not affect the run's exit code.
        later: calls a function after a number of seconds.
    """

    def __init__(
        self,
        send_operation: Callable[[Operation[Any]], None] | None,
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._send_operation = send_operation or (lambda operation: None)
        self._later = later
        self._lock = threading.Lock()
        self._errors: dict[str, UnobservedError] = {}
        self._left: dict[str, str] = {}  # maps keys of errors that were reported, and are no longer kept, to causes
        self._observed: dict[str, None] = {}
        self._counts = FailureCounts()
        self._timer_is_set = False
        self._closed = False
        _accounts[self] = None

    def __repr__(self) -> str:
        return f"<UnobservedErrors [{len(self._errors)}]>"

    def arrived(self, error: UnobservedError) -> None:
        """Record an error; any thread may call this."""
        with self._lock:
            if self._closed or error.cause in self._observed:
                return
            known = self._errors.setdefault(error.key, error)
            known.awaited = known.awaited or error.awaited
            left = self._errors.pop(next(iter(self._errors))) if len(self._errors) > MAX_ERRORS else None
            if left is not None and len(self._left) < MAX_ERRORS:  # the daemon keeps no more reports either
                self._left[left.key] = left.cause
            sets_timer = not (known.awaited or known.is_due or self._timer_is_set)
            self._timer_is_set = self._timer_is_set or sets_timer
        if known is error:
            self._send_operation(operations.ReportError(error.key, error.text))
            # The lock must not be held during a send, so the error may have been observed in the meantime.
            if error.cause in self._observed:
                self._send_operation(operations.WithdrawError(error.key))
        if left is not None and not left.is_due:
            self._log([left], "is not awaited yet")
        if sets_timer:
            self._later(settings.UNOBSERVED_ERROR_S(), self._look)

    def observed(self, cause: str) -> None:
        """Record that user code has received the error; any thread may call this."""
        with self._lock:
            self._observed.pop(cause, None)
            self._observed[cause] = None
            if len(self._observed) > MAX_OBSERVED:
                del self._observed[next(iter(self._observed))]
            keys = [key for key, error in self._errors.items() if error.cause == cause]
            for key in keys:
                self._counts.forget(self._errors.pop(key).text)
            for key in [key for key, known in self._left.items() if known == cause]:
                del self._left[key]
                keys.append(key)
        for key in keys:
            self._send_operation(operations.WithdrawError(key))

    def left(self, cause: str) -> None:
        """Record that a wait ended without raising its error; any thread may call this."""
        with self._lock:
            found = [error for error in self._errors.values() if error.cause == cause and error.awaited]
            for error in found:
                error.awaited, error.since = False, clock.monotonic()
            sets_timer = bool(found) and not self._timer_is_set
            self._timer_is_set = self._timer_is_set or sets_timer
        if sets_timer:
            self._later(settings.UNOBSERVED_ERROR_S(), self._look)

    def pending(self) -> list[UnobservedError]:
        with self._lock:
            return [error for error in self._errors.values() if not error.awaited]

    def close(self) -> None:
        with self._lock:
            left = [error for error in self._errors.values() if not error.is_due]
            self._errors.clear()
            self._closed = True
        ending_waits.discard(self)
        self._log(left, "was not awaited before its cluster was closed")

    def forget(self) -> None:
        """Drop the parent's errors in a forked child."""
        self._lock = threading.Lock()
        self._errors.clear()
        ending_waits.discard(self)

    def fail_fast(self) -> None:
        """From now on, let errors that are due end this process's plain waits."""
        ending_waits.add(self)

    # -- after a second -----------------------------------------------------------------------------------------

    def _look(self) -> None:
        patience, now = settings.UNOBSERVED_ERROR_S(), clock.monotonic()
        with self._lock:
            waiting = [error for error in self._errors.values() if not (error.awaited or error.is_due)]
            due = [error for error in waiting if error.since + patience <= now + 0.005]
            for error in due:
                error.is_due = True
            self._timer_is_set = len(due) < len(waiting)
        if self._timer_is_set:
            next_one = min(error.since for error in waiting if not error.is_due)
            self._later(next_one + patience - now, self._look)
        self._log(due, "is not awaited yet")
        if self in ending_waits and (first := _first_to_raise(due)) is not None:
            _end_waits(first)

    def _log(self, errors: Sequence[UnobservedError], state: str) -> None:
        for error in errors:
            with self._lock:
                count = self._counts.add(error.text)
            if count == 1:
                logger.error("failed, and %s: %s%s", state, error.text, error.details and f"\n{error.details}")
            elif count is not None:
                logger.error("failed %d times by now, and %s: %s", count, state, error.text)
            error.details = ""


_accounts: weakref.WeakKeyDictionary[UnobservedErrors, None] = weakref.WeakKeyDictionary()

# The ``UnobservedErrors`` of clients with ``fail_fast``. The set is usually empty, in which case a wait checks nothing
# else.
ending_waits: Final[set[UnobservedErrors]] = set()


def cause_of(error: BaseException) -> str:
    facts = vars(error)
    if "_rlinf_cause" not in facts:
        facts["_rlinf_cause"] = f"error {os.getpid()}:{next(_numbers)}"
    return str(facts["_rlinf_cause"])


def lines() -> list[str]:
    now = clock.monotonic()
    accounts = [reference() for reference in _accounts.keyrefs()]  # an atomic copy: another thread may be adding one
    errors = [error for account in accounts if account is not None for error in account.pending()]
    folded: dict[str, list[float]] = {}
    for error in sorted(errors, key=lambda error: error.since):
        folded.setdefault(error.text, []).append(now - error.since)
    found = [
        f"{text} ({ages[0]:.1f} s ago{f', and {len(ages) - 1} more like it' if len(ages) > 1 else ''})"
        for text, ages in itertools.islice(folded.items(), MAX_LINES)
    ]
    return found if len(folded) <= MAX_LINES else [*found, f"and {len(folded) - MAX_LINES} other failures"]


def warning_suffix() -> str:
    """Return ``lines()`` as the end of a warning about a wait; empty if there are none."""
    return "".join(f"\n    {line}" for line in ("failed, and not awaited yet:", *found)) if (found := lines()) else ""


# -- plain waits that an error ends -----------------------------------------------------------------------------------


class ErrorWatch:
    """A plain wait in a process with ``fail_fast``, and the error that ended it, if any."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end
        self.error: UnobservedError | None = None


_watches: dict[ErrorWatch, None] = {}


@contextmanager
def watched(end: Callable[[], None]) -> Iterator[ErrorWatch]:
    """Context manager: calls ``end``, on any thread, once an error is due. The watch holds an error that is due."""
    watch = ErrorWatch(end)
    # Register the watch before looking for errors, so that an error that becomes due in between is seen at least once.
    _watches[watch] = None
    try:
        due = [error for account in list(ending_waits) for error in account.pending() if error.is_due]
        watch.error = watch.error or _first_to_raise(due)
        yield watch
    finally:
        del _watches[watch]


def _first_to_raise(errors: Sequence[UnobservedError]) -> UnobservedError | None:
    return next((error for error in errors if error.make is not None), None)


def _end_waits(error: UnobservedError) -> None:
    for watch in list(_watches):
        watch.error = watch.error or error
        watch.end()
