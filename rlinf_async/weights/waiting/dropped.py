"""Release of what an object holds that is dropped without having been closed."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

from rlinf_async._core import process


def on_drop(owner: Any, what: str, *releases: Callable[[], object]) -> Callable[[], object]:
    """Has these called when nothing refers to the owner any more, which none of them does; returns what prevents it.

    Args:
        what: the owner in words, for a ``ResourceWarning``; empty for none.
    """
    finalizer = weakref.finalize(owner, _drop, process.pid, what, releases)
    finalizer.atexit = False
    return finalizer.detach


def _drop(pid: int, what: str, releases: tuple[Callable[[], object], ...]) -> None:
    if pid != process.pid:
        return  # a forked process's copy: its memory goes with it
    for release in releases:
        release()
    if what:
        warnings.warn(f"unclosed {what}: close() it, or its scheme", ResourceWarning, stacklevel=2)
