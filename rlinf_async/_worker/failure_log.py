"""Logs exceptions raised by a worker's methods: the first of each kind with its traceback, later ones as counts."""

from __future__ import annotations

from rlinf_async._core.failure_counts import FailureCounts
from rlinf_async._core.failures import Failure, users_line
from rlinf_async._core.own_logger import own_logger
from rlinf_async._worker.logs import OWN

logger = own_logger(OWN)


class FailureLog:
    """Counts one worker's exceptions by type and by the line of user code that raised them."""

    def __init__(self) -> None:
        self._counts = FailureCounts()

    def add(self, method: str, error: BaseException, failure: Failure) -> None:
        """Log an exception if it is the first of its kind or the kind's count is a power of ten.

        Args:
            failure: the exception as sent to the caller.
        """
        place = users_line(error.__traceback__)
        count = self._counts.add((failure.type_name, place))
        if count == 1:
            logger.error("%s() has raised an exception, which its caller gets:\n%s", method, failure.traceback.rstrip())
        elif count is not None:
            logger.error("%s() and others: %s at %s %d times by now", method, failure.type_name, place, count)
