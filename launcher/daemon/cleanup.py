"""Cleanup in parts: a part that raises is logged and does not skip the others.

A dead process leaves entries in many tables: calls, leases, locks, names, ports.  If an exception in one of them
skipped the others, locks would stay taken and callers would wait for as long as the daemon lives.

tests/launcher/daemon/test_cleanup.py::test_whichever_part_of_a_cleanup_raises_the_others_run
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rlinf_async._core.own_logger import own_logger

logger = own_logger(__name__)


def run_all(owner: str, parts: Iterable[Callable[[], object]]) -> None:
    """Call every part in order; log the exception of a part, with ``owner``, and continue with the next one."""
    for part in parts:
        try:
            part()
        except Exception:
            logger.exception("cleaning up after %s: one part failed, the others were done", owner)
