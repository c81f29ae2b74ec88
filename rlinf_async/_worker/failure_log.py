"""Logs the exceptions that leave a worker's methods: the first of a kind with its traceback, then counts."""

from __future__ import annotations

import logging
import types

from rlinf_async._core.failure_counts import FailureCounts
from rlinf_async._core.failures import Failure
from rlinf_async._worker.logs import NAME

logger = logging.getLogger(NAME)


class FailureLog:
    """The exceptions of one worker, folded by type and by the line of the user's code that raised them."""

    def __init__(self) -> None:
        self._counts = FailureCounts()

    def add(self, method: str, error: BaseException, failure: Failure) -> None:
        """Logs it, unless there have been others of its kind.

        Args:
            failure: the same exception, as it travels to the caller.
        """
        place = _place_of(error.__traceback__)
        count = self._counts.add((failure.type_name, place))
        if count == 1:
            logger.error("%s() has raised an exception, which its caller gets:\n%s", method, failure.traceback.rstrip())
        elif count is not None:
            logger.error("%s() and others: %s at %s %d times by now", method, failure.type_name, place, count)


def _place_of(frames: types.TracebackType | None) -> str:
    """File and line of the innermost frame outside of the framework, through which the errors of other workers pass."""
    place = "no line of the user's"
    while frames is not None:
        if not str(frames.tb_frame.f_globals.get("__name__")).startswith("rlinf_async."):
            place = f"{frames.tb_frame.f_code.co_filename}:{frames.tb_lineno}"
        frames = frames.tb_next
    return place
