"""Cleanup in parts, none of which is left out because another one raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

logger = logging.getLogger(__name__)


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
