"""Unawaited errors of calls: logs them after a second, lists them, tells the daemon; ``fail_fast`` ends waits.

The error of a call may arrive long before the script awaits it, and perhaps it never does, because it waits for
something else: ``env.wait(); rollout.wait(); actor.wait()`` sits in the first line when the actor has failed::

    arrived ── RLINF_UNOBSERVED_ERROR_S ──► logged with its remote traceback; with ``fail_fast`` it ends plain waits
       │                                    lines(): "still waiting" words, Ctrl-C
       └── ReportError ──► daemon           the run's exit code is not 0 ...
    observed ── WithdrawError ──► daemon    ... unless the script gets the error, of this call or of one that shares it

Several calls share an error: a rank's death, the loss of a node, the error of a constructor.  What they share is their
``cause``, and an error that was caught once is not reported for the others.
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

MAX_ERRORS: Final = 1000
"""Errors of one client that are kept; the oldest of more stand in the log, and in the launcher's account."""

MAX_OBSERVED: Final = 1000
"""Causes that are remembered once they have been observed: errors that share them may still be on their way."""

MAX_LINES: Final = 16
"""Lines about errors in one word."""

_numbers = itertools.count(1)


@dataclass(eq=False)
class UnobservedError:
    """An error, of a call or of a rank, that has arrived and that nobody has got yet.

    Attributes:
        cause: what it shares with the errors of other calls.
        of: the call, or the rank: ``"actor.train()"``.
        text: one line: the call, its ranks and the error.
        details: the remote traceback, with where it comes from.
        make: makes the exception; None for what is no call's error, which ends no wait.
        awaited: a wait for the call goes on, and gets it.
        is_due: it has been there for ``RLINF_UNOBSERVED_ERROR_S``, and is in the log.
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
        """The exception; the user's code has got it."""
        return self.make() if self.make is not None else None

    @property
    def key(self) -> str:
        return f"{self.cause} of {self.of}"


class UnobservedErrors:
    """The unobserved errors of one client.

    An error and the code that gets it may come in either order, in different threads: what has been heard before it
    arrived is never reported.

    Args:
        send_operation: requests an operation of the daemon, which keeps the account for the launcher; None in a
            worker, whose errors are no matter of the run's exit code.
        later: calls back after so many seconds.
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
        self._observed: dict[str, None] = {}
        self._counts = FailureCounts()
        self._timer_is_set = False
        self._closed = False
        _accounts.add(self)

    def __repr__(self) -> str:
        return f"<UnobservedErrors [{len(self._errors)}]>"

    def arrived(self, error: UnobservedError) -> None:
        """Takes an error; in any thread."""
        with self._lock:
            if self._closed or error.cause in self._observed:
                return
            known = self._errors.setdefault(error.key, error)
            known.awaited = known.awaited or error.awaited
            left = self._errors.pop(next(iter(self._errors))) if len(self._errors) > MAX_ERRORS else None
            sets_timer = not (known.awaited or known.is_due or self._timer_is_set)
            self._timer_is_set = self._timer_is_set or sets_timer
        if known is error:
            self._send_operation(operations.ReportError(error.key, error.text))
            # Not under the lock, which must not be held while something is sent: it may have been heard meanwhile.
            if error.cause in self._observed:
                self._send_operation(operations.WithdrawError(error.key))
        if left is not None and not left.is_due:
            self._log([left], "is not awaited yet")
        if sets_timer:
            self._later(settings.UNOBSERVED_ERROR_S(), self._look)

    def observed(self, cause: str) -> None:
        """The user's code gets the error; in any thread."""
        with self._lock:
            self._observed.pop(cause, None)
            self._observed[cause] = None
            if len(self._observed) > MAX_OBSERVED:
                del self._observed[next(iter(self._observed))]
            keys = [key for key, error in self._errors.items() if error.cause == cause]
            for key in keys:
                self._counts.forget(self._errors.pop(key).text)
        for key in keys:
            self._send_operation(operations.WithdrawError(key))

    def left(self, cause: str) -> None:
        """The wait that was to get the error has ended without it; in any thread."""
        with self._lock:
            found = [error for error in self._errors.values() if error.cause == cause and error.awaited]
            for error in found:
                error.awaited, error.since = False, clock.monotonic()
            sets_timer = bool(found) and not self._timer_is_set
            self._timer_is_set = self._timer_is_set or sets_timer
        if sets_timer:
            self._later(settings.UNOBSERVED_ERROR_S(), self._look)

    def pending(self) -> list[UnobservedError]:
        """Errors for which no wait goes on, in the order of their arrival."""
        with self._lock:
            return [error for error in self._errors.values() if not error.awaited]

    def close(self) -> None:
        """Logs what is not in the log yet; no more is taken to be unobserved."""
        with self._lock:
            left = [error for error in self._errors.values() if not error.is_due]
            self._errors.clear()
            self._closed = True
        ending_waits.discard(self)
        self._log(left, "was not awaited before its cluster was closed")

    def forget(self) -> None:
        """In a forked child: they are the parent's."""
        self._lock = threading.Lock()
        self._errors.clear()
        ending_waits.discard(self)

    def fail_fast(self) -> None:
        """From now on an error that is due ends the plain waits of this process."""
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


_accounts: weakref.WeakSet[UnobservedErrors] = weakref.WeakSet()

ending_waits: Final[set[UnobservedErrors]] = set()
"""Those of the clients with ``fail_fast``; empty, as a rule, which is all that a wait has to look at."""


def cause_of(error: BaseException) -> str:
    """The cause of an error of this process that several calls share."""
    facts = vars(error)
    if "_rlinf_cause" not in facts:
        facts["_rlinf_cause"] = f"error {os.getpid()}:{next(_numbers)}"
    return str(facts["_rlinf_cause"])


def lines() -> list[str]:
    """One line for each error that has arrived in this process and is not awaited, like ones folded."""
    now = clock.monotonic()
    errors = sorted(
        (error for account in list(_accounts) for error in account.pending()), key=lambda error: error.since
    )
    folded: dict[str, list[float]] = {}
    for error in sorted(errors, key=lambda error: error.since):
        folded.setdefault(error.text, []).append(now - error.since)
    told = [
        f"{text} ({ages[0]:.1f} s ago{f', and {len(ages) - 1} more like it' if len(ages) > 1 else ''})"
        for text, ages in itertools.islice(folded.items(), MAX_LINES)
    ]
    return told if len(folded) <= MAX_LINES else [*told, f"and {len(folded) - MAX_LINES} other failures"]


def word() -> str:
    """The same as the end of a word about a wait; nothing where there are none."""
    return "".join(f"\n    {line}" for line in ("failed, and not awaited yet:", *found)) if (found := lines()) else ""


# -- plain waits that an error ends -----------------------------------------------------------------------------------


class Watch:
    """A plain wait in a process with ``fail_fast``.

    Attributes:
        error: what has ended it; None while nothing has.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end
        self.error: UnobservedError | None = None


_watches: dict[Watch, None] = {}


@contextmanager
def watched(end: Callable[[], None]) -> Iterator[Watch]:
    """Has ``end`` called, in any thread, once an error is due; one that is due already stands in the watch."""
    watch = Watch(end)
    # First the watch, then the look: an error that becomes due in between is seen by one of the two at least.
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
