"""Ownership of threads, loops and memory: ``OwnerProcess`` identifies an object's process, and ``on_drop`` releases the
resources of a dropped object."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Final

from rlinf_async._core import process
from rlinf_async.errors import ForkedProcessError


class OwnerProcess:
    """The process that created an object; copies of the object in forked children lack its threads and loops."""

    def __init__(self) -> None:
        self.pid = process.pid

    @property
    def is_here(self) -> bool:
        return self.pid == process.pid

    def forked(self, what: str) -> ForkedProcessError:
        return process.forked(what, self.pid)


_resettable: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def reset_in_children(thing: Any) -> None:
    """Call ``thing._reset()`` in each forked child, because threads of the parent may hold its locks."""
    _resettable.add(thing)


def _reset_all() -> None:
    for thing in _resettable:
        thing._reset()


os.register_at_fork(after_in_child=_reset_all)


def on_drop(owner: Any, what: str, *releases: Callable[[], object]) -> Callable[[], object]:
    """Call functions when the owner is dropped; return a function that cancels this. No function may reference the
    owner.

    Args:
        what: description of the owner for a ``ResourceWarning``; empty for no warning.
    """
    finalizer = weakref.finalize(owner, _drop, OwnerProcess(), what, releases)
    finalizer.atexit = False
    return finalizer.detach


def _drop(process: OwnerProcess, what: str, releases: tuple[Callable[[], object], ...]) -> None:
    if not process.is_here:
        return  # in a forked child, the copy's memory ends with the child
    for release in releases:
        release()
    if what:
        warnings.warn(f"unclosed {what}: close() it, or its scheme", ResourceWarning, stacklevel=2)
