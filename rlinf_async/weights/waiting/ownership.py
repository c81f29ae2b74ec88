"""Ownership of threads, loops and memory: the process to which an object belongs, and release of dropped objects."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Final

from rlinf_async._core import process
from rlinf_async.errors import ForkedProcessError


class OwnerProcess:
    """Process that made an object; its forked children have copies of the object without its threads and loops."""

    def __init__(self) -> None:
        self.pid = process.pid

    @property
    def is_here(self) -> bool:
        return self.pid == process.pid

    def forked(self, what: str) -> ForkedProcessError:
        return process.forked(what, self.pid)


_resettable: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def reset_in_children(thing: Any) -> None:
    """Call ``thing._reset()`` in each forked child: threads that do not exist there may hold its locks."""
    _resettable.add(thing)


def _reset_all() -> None:
    for thing in _resettable:
        thing._reset()


os.register_at_fork(after_in_child=_reset_all)


def on_drop(owner: Any, what: str, *releases: Callable[[], object]) -> Callable[[], object]:
    """Call functions when the owner, to which none of them refers, is dropped; return a function that cancels this.

    Args:
        what: description of the owner for a ``ResourceWarning``; empty for none.
    """
    finalizer = weakref.finalize(owner, _drop, OwnerProcess(), what, releases)
    finalizer.atexit = False
    return finalizer.detach


def _drop(process: OwnerProcess, what: str, releases: tuple[Callable[[], object], ...]) -> None:
    if not process.is_here:
        return  # the copy in a forked child: its memory ends with the child
    for release in releases:
        release()
    if what:
        warnings.warn(f"unclosed {what}: close() it, or its scheme", ResourceWarning, stacklevel=2)
