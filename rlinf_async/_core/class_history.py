"""History of classes that travel by value: attributes changed at the origin reach receivers; receivers keep their own.

A class arrives with every object of it.  A receiver fills it in once.  Afterwards it takes only attributes that the
origin, the process that defines the class, has assigned since then, so that a worker's own assignments
(``Reward.model = load()``) survive the next argument of that class.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

_NOTHING: Final = object()


class _ClassOrigin:
    """Attributes of a class of this process, as they were when the class was last sent.

    Attributes:
        marks: by attribute, a weak reference to its value, or the value itself where it takes none.  A strong reference
            to a function of the class would keep the class alive for ever.
        changes: by attribute assigned since the class was first sent, a number that rises with time.
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


_ours: WeakKeyDictionary[type, _ClassOrigin] = WeakKeyDictionary()
_theirs: WeakKeyDictionary[type, dict[str, int]] = WeakKeyDictionary()
"""Changes applied here to each class of another process, numbered by its origin."""
_lock = threading.RLock()


def changes_of(kind: type, attributes: dict[str, Any]) -> dict[str, int]:
    """Return the numbered changes of a class that is about to be sent with these attributes."""
    with _lock:
        if kind in _theirs:
            return dict(_theirs[kind])
        origin = _ours.get(kind)
        if origin is None:
            origin = _ours[kind] = _ClassOrigin(attributes)
        else:
            origin.look(attributes)
        return dict(origin.changes)


def adopt(kind: type) -> None:
    """Register a class of this process after another process has sent its own import of it."""
    with _lock:
        if kind not in _theirs:
            _ours.setdefault(kind, _ClassOrigin({}))


def fill_in(
    kind: type, attributes: dict[str, Any], changes: dict[str, int], assign: Callable[[dict[str, Any]], Any]
) -> None:
    """Assign the attributes of an arrived class that are new since it last arrived."""
    # Two threads may decode a class at once: without the lock, the second could assign after the first has run user
    # code that set an attribute.
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
