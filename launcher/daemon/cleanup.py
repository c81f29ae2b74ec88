"""Runs every part of a cleanup, and logs the exceptions, so that a failing part does not skip the others.

What a dead process leaves is spread over many tables: calls, leases, locks, names, ports.  One exception in the first
of them would leave held locks and waiting callers behind, for as long as the daemon lives.

tests/launcher/daemon/test_cleanup.py::test_whichever_part_of_a_cleanup_raises_the_others_are_done_and_it_is_logged_once
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rlinf_async._core.own_logger import own_logger

logger = own_logger(__name__)


def run_all(what: str, parts: Iterable[Callable[[], object]]) -> None:
    """Calls every part in order; what one raises is logged, once, and the next one is called.

    Args:
        what: whose cleanup it is, for the log.
    """
    for part in parts:
        try:
            part()
        except Exception:
            logger.exception("cleaning up after %s: one part failed, the others were done", what)
