"""Cleanup in parts: if one part raises, the exception is logged, and the other parts still run.

A dead process leaves entries in many tables: calls, leases, locks, names, ports.  If an exception in one table's
cleanup skipped the others, locks would stay taken and callers would wait as long as the daemon lives.

tests/launcher/daemon/test_cleanup.py::test_whichever_part_of_a_cleanup_raises_the_others_run
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rlinf_async._core.own_logger import own_logger

logger = own_logger(__name__)


def run_all(owner: str, parts: Iterable[Callable[[], object]]) -> None:
    """Call every part in order; if a part raises, log the exception with ``owner`` and continue."""
    for part in parts:
        try:
            part()
        except Exception:
            logger.exception("cleaning up after %s: one part failed, the others were done", owner)
