"""Attributes of classes that travel by value: those that have changed at the origin reach receivers, their own stay.

A class arrives with every object of it.  Receivers fill it in once.  Afterwards they take only attributes that the
origin, the process that defines the class, has assigned anew since then, so that a worker's own assignments
(``Reward.model = load()``) survive the next argument of that class.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

_NOTHING: Final = object()


class _Origin:
    """Attributes of a class of this process, as they were when it last left.

    Attributes:
        marks: of each attribute, a weak reference to the value where there can be one: a function of a class may hold
            the class, which must not live for ever.
        changes: a number for each attribute that was assigned since the class first left, ascending with time.
    """

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.marks = {name: _mark(value) for name, value in attributes.items()}
        self.changes: dict[str, int] = {}
        self._count = 0

    def look(self, attributes: dict[str, Any]) -> None:
        for name, value in attributes.items():
            mark = self.marks.get(name, _NOTHING)
            if (mark() if type(mark) is weakref.ref else mark) is not value:
                self._count += 1
                self.marks[name], self.changes[name] = _mark(value), self._count


_ours: WeakKeyDictionary[type, _Origin] = WeakKeyDictionary()
_theirs: WeakKeyDictionary[type, dict[str, int]] = WeakKeyDictionary()
"""The changes that each class of another process has here."""
_lock = threading.RLock()


def changes_of(kind: type, attributes: dict[str, Any]) -> dict[str, int]:
    """Return the numbered changes of a class that is about to leave, with these attributes."""
    with _lock:
        if kind in _theirs:
            return dict(_theirs[kind])
        origin = _ours.get(kind)
        if origin is None:
            origin = _ours[kind] = _Origin(attributes)
        else:
            origin.look(attributes)
        return dict(origin.changes)


def adopt(kind: type) -> None:
    """Note a class of this process for which one has arrived that another process has imported."""
    with _lock:
        if kind not in _theirs:
            _ours.setdefault(kind, _Origin({}))


def fill_in(
    kind: type, attributes: dict[str, Any], changes: dict[str, int], assign: Callable[[dict[str, Any]], Any]
) -> None:
    """Assign the attributes that a class which has arrived is to have from its origin."""
    # Two threads may decode a class at once; the second one must not assign after the first one's user code did.
    with _lock:
        if kind in _ours:
            return
        known = _theirs.get(kind)
        if known is None:
            assign(attributes)
            _theirs[kind] = changes
            return
        news = {name for name, number in changes.items() if number > known.get(name, 0) and name in attributes}
        if news:
            assign({name: value for name, value in attributes.items() if name in news})
            known.update((name, changes[name]) for name in news)


def _mark(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:
        return value
